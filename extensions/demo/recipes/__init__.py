"""Recipes of the demo models, one file each."""
