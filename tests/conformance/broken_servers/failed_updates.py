"""Broken servers."""
