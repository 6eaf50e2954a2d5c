"""Streams on a Redis server, for runs on several machines: `streams=redis`.

Plugs into the processes of a run and into commands that read it, as the backend of its streams. Must not know
what a record means.
"""
