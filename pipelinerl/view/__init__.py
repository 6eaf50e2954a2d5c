"""Views of a run, read from its directory: its metrics for trackers, its rollouts as parquet.

Called by users' commands, and by the launcher only for the names of trackers. No worker of a run imports it.
Must not know how to change a run.
"""
