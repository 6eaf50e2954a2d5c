"""Jobs on a Ray cluster. Each job has a keeper: a Ray actor on the job's node, which starts the job.

Called by the launcher through `executor.RayExecutor`. Only `cluster` imports ray.
"""
