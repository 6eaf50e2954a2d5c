"""Scripts for sbatch: a run inside an allocation of SLURM, and nodes that join one that is running.

Called by nothing but the command `python -m pipelinerl.slurm`. Must not know what a run does: it starts Ray
and launch.py, and submits nothing.
"""
