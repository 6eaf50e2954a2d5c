"""What the trainer does: learn from rows, publish weights, save checkpoints, watch itself.

Called by `pipelinerl.trainer` and by the commands that train or export without a run. The launcher uses
`checkpoints` to resume. Must not know how rollouts were sampled, or which backend computes.
"""
