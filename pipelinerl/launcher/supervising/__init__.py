"""Starts the jobs of a run, monitors them, restarts those that end, and ends them all."""
