"""Streams on a Redis server, for the processes of more than one machine: `streams=redis`.

Plugs into the processes of a run, and whatever reads one, as the backend of its streams. Must not know what a
record means.
"""
