"""Executors, which place and start the jobs of a run. Must not know what a job does."""
