"""Where the jobs of a run are placed and started: on this machine, or on a cluster.

Called by the launcher, which supervises the jobs through `base.Executor`. It must not know what a job does.
"""
