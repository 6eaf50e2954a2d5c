"""The runs that the viewer shows. A run is opened when it is requested, and followed while it is watched."""
