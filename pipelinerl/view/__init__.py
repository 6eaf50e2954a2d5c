"""Views of a run from outside of it: what trackers are given, read from the files of the run directory.

Called by the command `track`, and by the launcher for the names of trackers alone. No process that computes
a run imports it. Must not know how to change a run.
"""
