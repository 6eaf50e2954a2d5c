"""A run seen from outside: metrics for trackers, rollouts as parquet, requests as a picture.

Called by users' commands, and by the launcher for the names of trackers alone. No process that computes a run
imports it. Must not know how to change a run.
"""
