"""Prints a script for sbatch that starts a run or adds nodes to one, and submits nothing.

    python -m extensions.cluster.slurm nodes=4 gpus=8 time=24:00:00 -- run_dir=/shared/runs/one ... | sbatch
    python -m extensions.cluster.slurm join=/shared/runs/one nodes=1 gpus=8 | sbatch --qos=preemptible

The first starts a Ray cluster inside the allocation and a run on it; after `--` are launch.py's arguments.
The second adds its nodes to the cluster of a run. Both want a checkout and this command's Python, at the same
paths on all nodes. Without cpus=N whole nodes are asked for. What can be set:
"""

import sys

from contracts.support.messages import one_line
from extensions.cluster.slurm.script import SBATCH, script
from pipelinerl.errors import PlanError


def main(arguments: list[str]) -> int:
    """Runs the command and returns its exit status."""
    if {"-h", "--help"} & {*arguments}:
        print(__doc__.rstrip(), ", ".join(["join", *SBATCH]))
        return 0
    try:
        print(script(arguments), end="")
        return 0
    except PlanError as error:
        print(f"extensions.cluster.slurm: {one_line(error)}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
