"""Shows the records of a run in a terminal: `python -m extensions.viewer.records`."""
