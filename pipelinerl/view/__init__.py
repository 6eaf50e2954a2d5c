"""A run seen from outside: its metrics for trackers, its rollouts as parquet, read from its directory.

Called by users' commands, and by the launcher for the names of trackers alone. No process that computes a run
imports it. Must not know how to change a run.
"""
