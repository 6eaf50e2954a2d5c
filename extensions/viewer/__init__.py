"""Views of a run, read from its directory: pages, trackers of metrics, rollouts as parquet, a trace.

Plugs into the launcher as observers of a run, and into users' commands. The run's workers do not import it.
Must not know how to change a run.
"""
