"""A service that judges answers in confined processes, because a model's output may be hostile.

Called by the launcher, which starts the service, and by rollouts. Must not know domains, servers, groups or
the run's secrets.
"""
