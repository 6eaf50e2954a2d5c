"""The runs that the viewer shows: found by name, opened, and followed while somebody watches."""
