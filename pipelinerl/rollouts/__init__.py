"""The parts of the actor: admission of groups, rollouts, reward terms and evaluation.

Called by `pipelinerl.actor` and by the commands that sample without a run. Must not know how rollouts
become batches, or how the trainer learns from them.
"""
