"""Commands to use between runs: difficulty, shortest, merge and replay.

Plugs into nothing: users call the commands. Only `replay` may know a run's processes.
"""
