"""Views of a run, read from its directory: metrics for trackers, rollouts as parquet, requests as a picture.

Called by users' commands, and by the launcher only for the names of trackers. No worker of a run imports it.
Must not know how to change a run.
"""
