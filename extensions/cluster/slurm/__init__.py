"""Scripts for sbatch, which start a run inside a SLURM allocation, or add nodes to a live run.

Called by the command `python -m extensions.cluster.slurm`. Must not know what a run does: the scripts start
Ray and launch.py. It submits nothing.
"""
