"""Views of a run, read from its directory: pages, trackers of metrics, rollouts as parquet, a trace.

Plugs into the launcher as observers of a run, and is called by users' commands. No worker of a run imports
it. Must not know how to change a run.
"""
