"""Reports on a run from its streams and metrics: the console, the ledger of groups, the summary, the plot.

Called by the launcher. Must not know how to change a run.
"""
