"""The parts of the trainer: learning from rows, publishing weights, saving checkpoints, the probe.

Called by `pipelinerl.trainer` and by the commands that train or export without a run. The launcher uses
`checkpoints` to resume. Must not know how rollouts were sampled, or which backend computes.
"""
