"""Judging: a service that judges answers in confined processes, because a model's output may be hostile.

Called by the launcher, which starts the service, and by rollouts, which use its client. Must not know
domains, servers, groups or the run's secrets.
"""
