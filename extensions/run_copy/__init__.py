"""Copies a run to a second place, from which it can be resumed (`observers=copy`).

Plugs into the launcher as an observer.
"""
