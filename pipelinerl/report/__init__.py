"""What a run has done, read from its streams and metrics: the summary, the ledger of groups, the console.

Called by the launcher, when a run resumes, while it runs and at its end. Must not know how to change a run:
it writes only the summary, the plot and the card of the exported model.
"""
