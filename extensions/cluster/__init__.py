"""Runs over several nodes: an executor on Ray. `examples/slurm` starts Ray in a job of SLURM.

Plugs into the launcher as its executor (`executor=ray`).
"""
