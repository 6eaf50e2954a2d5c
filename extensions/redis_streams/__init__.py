"""Streams on a Redis server, for processes on several machines (`streams=redis`).

Plugs into the processes of a run, and commands that read one, as the backend of its streams. Must not know
the meaning of records.
"""
