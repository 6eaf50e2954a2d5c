"""Domains: what to train on. A domain has problems, and defines how to make and judge a rollout at a problem.

Built by `pipelinerl.components` from the configuration. Must not know servers, groups or batches.
"""
