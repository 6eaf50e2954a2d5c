"""Executors, which place and start the jobs of a run on this machine or on a cluster.

Called by the launcher, which supervises the jobs through `base.Executor`. It must not know what a job does.
"""
