"""One file a demo model."""
