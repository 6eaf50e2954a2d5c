"""Jobs on a Ray cluster: an actor on the job's node, its keeper, starts each job in a reservation.

Called by the launcher through `executor.RayExecutor`. Only `cluster` imports ray, and only in runs on a
cluster.
"""
