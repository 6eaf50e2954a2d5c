"""What a run has done, read from its streams and metrics: the summary, the ledger of groups, the console.

Called by the launcher, while a run goes on and at its end. Must not know how to change a run: it only reads.
"""
