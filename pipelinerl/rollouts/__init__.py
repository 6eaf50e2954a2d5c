"""What the actor does: admit groups, run rollouts, put rewards on them, and evaluate.

Called by `pipelinerl.actor` and by the commands that sample without a run. Must not know how rollouts
become batches, or how the trainer learns from them.
"""
