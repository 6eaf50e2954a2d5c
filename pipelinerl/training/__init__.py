"""The parts of the trainer: learning from rows, publishing weights, saving checkpoints, the probe.

Called by `pipelinerl.trainer`, by commands that train or export without a run, and by the launcher, which
uses `checkpoints`. Must not know how rollouts were sampled, or which backend computes.
"""
