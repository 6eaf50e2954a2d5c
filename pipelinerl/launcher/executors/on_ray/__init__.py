"""Jobs on a Ray cluster: each is kept by an actor on its node, in a reservation of its own.

Called by the launcher through `executor.RayExecutor`. `cluster` alone imports ray, in runs on a cluster.
"""
