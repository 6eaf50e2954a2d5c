"""Judging: a service that decides what answers are worth, because a model's output may be hostile.

Called by the launcher, which starts the service, and by rollouts, which ask it through the client. Must not
know domains, servers, groups or the run's secrets.
"""
