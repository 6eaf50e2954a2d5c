"""The script of examples/slurm as a user would edit it."""

import re
import sys
from pathlib import Path

from pipelinerl.paths import ROOT

SCRIPT = ROOT / "examples" / "slurm" / "run.sbatch"


def edited(directory: Path, run_dir: Path, arguments: str, project: Path = ROOT) -> Path:
    """Writes the script with these values, for nodes without GPUs, and returns its path."""
    text = SCRIPT.read_text().replace("#SBATCH --gpus-per-node=8\n", "")
    values = {"project": project, "python": sys.executable, "run_dir": run_dir, "arguments": f"({arguments})"}
    for name, value in values.items():
        text = re.sub(f"^{name}=.*", f"{name}={value}", text, count=1, flags=re.MULTILINE)
    path = directory / "run.sbatch"
    path.write_text(text)
    return path
