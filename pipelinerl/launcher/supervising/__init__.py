"""Starts the jobs of a run, monitors them, restarts those that end, and ends them all. Called by `run.py`.

`supervisor.py` is its loop; each kind of job has a module.
"""
