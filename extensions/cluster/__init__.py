"""Runs over several nodes: an executor on Ray, and scripts that start Ray in SLURM.

Plugs into the launcher as its executor (`executor=ray`).
"""
