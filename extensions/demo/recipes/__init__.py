"""The recipes of the demo models."""
