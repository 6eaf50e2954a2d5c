"""Counts the project's lines that each process of a demo loads: `python -m tests.loaded`."""

import subprocess
import sys

from pipelinerl.paths import ROOT

# What a process imports at its start, and what the demo's configuration has it import.
PROCESSES = {
    "launcher": ("launch", "pipelinerl.launcher.run"),
    "actor": ("pipelinerl.actor", "extensions.reasoning_gym.domain"),
    "preprocessor": ("pipelinerl.preprocessor",),
    "trainer": ("pipelinerl.trainer", "pipelinerl.training.publishing.group", "trainer_adapters.fsdp"),
    "server": ("inference_adapters.transformers.__main__",),
}
PROGRAM = """
import importlib, sys
from pathlib import Path
root, *names = sys.argv[1:]
for name in names:
    importlib.import_module(name)
files = {Path(module.__file__) for module in sys.modules.values() if getattr(module, "__file__", None)}
ours = [file for file in files if file.is_relative_to(root) and "site-packages" not in file.parts]
print(sum(file.read_text().count("\\n") for file in ours), *{name.partition(".")[0] for name in sys.modules})
"""


def loaded(process: str) -> tuple[int, set[str]]:
    """Returns the project's lines that a process loads, and the names of all packages that it imports."""
    command = [sys.executable, "-c", PROGRAM, str(ROOT), *PROCESSES[process]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines, *packages = done.stdout.split()
    return int(lines), set(packages)


if __name__ == "__main__":
    for name in PROCESSES:
        print(f"{name:14} {loaded(name)[0]:6,} lines")
