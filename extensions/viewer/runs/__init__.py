"""The runs that the viewer shows: found by name, opened, and followed while a page is open."""
