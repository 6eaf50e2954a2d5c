"""The parts of the actor: admission of groups, rollouts, reward terms and evaluation.

Called by `pipelinerl.actor` and by commands that sample without a run. Must not know batching or training.
"""
