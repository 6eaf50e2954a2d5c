"""Domains: what to train on. A domain has problems, and says how a rollout at one is made and judged.

Built by `pipelinerl.components` from the configuration. Must not know servers, groups or batches.
"""
