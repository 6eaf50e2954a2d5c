"""Writes the text of a script: the user's settings, followed by the common parts (*.sh).

Called by the command. It must not know SLURM's state, because everything happens when the script runs.
"""

import re
import shlex
import sys
from pathlib import Path

from pipelinerl.errors import PlanError
from pipelinerl.paths import ROOT, conf_directory

HERE = Path(__file__).parent
COUNTS = ("nodes", "gpus", "cpus")
SBATCH = {  # setting -> option of sbatch
    "nodes": "nodes",
    "gpus": "gpus-per-node",
    "cpus": "cpus-per-task",
    "time": "time",
    "account": "account",
    "constraint": "constraint",
    "exclude": "exclude",
    "mem": "mem",
    "nodelist": "nodelist",
    "partition": "partition",
    "qos": "qos",
    "reservation": "reservation",
}
FIXED = {"executor": "ray", "streams": "redis"}  # keys of launch.py on a cluster
TOLD_BEFORE_S = 60  # SLURM signals the batch script so long before the time limit


def script(arguments: list[str]) -> str:
    """Returns the script for the arguments of the command. Raises PlanError if they are invalid."""
    conf_directory()  # exists only in a checkout, like launch.py
    own, separator, of_launch = split(arguments)
    settings = read_settings(own)
    if "join" in settings:
        if separator:
            raise PlanError("join= adds nodes to a run that has its arguments: leave out -- and what follows")
        run_dir = absolute("join", settings.pop("join"))
        return assemble("join", settings, run_dir, [])
    if not separator:
        raise PlanError(
            "put -- before the arguments of launch.py: nodes=4 gpus=8 -- run_dir=/shared/runs/one"
        )
    run_dir = absolute("run_dir", value_of("run_dir", of_launch))
    return assemble("run", settings, run_dir, for_a_cluster(of_launch))


def split(arguments: list[str]) -> tuple[list[str], bool, list[str]]:
    """Returns the arguments before `--`, whether there is a `--`, and the arguments after it."""
    if "--" not in arguments:
        return arguments, False, []
    at = arguments.index("--")
    return arguments[:at], True, arguments[at + 1 :]


def read_settings(arguments: list[str]) -> dict[str, str]:
    """Returns the settings by name. Raises PlanError for a setting that sbatch would misread or not know."""
    settings: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or name not in ("join", *SBATCH):
            known = ", ".join(["join", *SBATCH])
            raise PlanError(f"{argument}: not one of {known}; give sbatch what else it needs by itself")
        if name in settings:
            raise PlanError(f"{name} is set twice; set it once")
        if name != "join" and not re.fullmatch(r"[^\s\"'#\\]+", value):
            raise PlanError(
                f"{argument}: a value with blanks, quotes or nothing; give it to sbatch by itself"
            )
        settings[name] = value
    settings.setdefault("nodes", "1")
    for name in COUNTS:
        least = 0 if name == "gpus" else 1
        given = settings.get(name, str(least))
        if not (given.isascii() and given.isdecimal() and int(given) >= least):
            raise PlanError(f"{name}={settings[name]}: set it to a whole number, {least} or more")
    return settings


def value_of(key: str, arguments: list[str]) -> str:
    """Returns the value of a key on launch.py's command line. Raises PlanError unless it occurs once."""
    values = [value for name, _, value in (argument.partition("=") for argument in arguments) if name == key]
    if len(values) != 1:
        raise PlanError(f"set {key} once after --, to a directory that all nodes see")
    return values[0]


def absolute(key: str, value: str) -> Path:
    """Returns the directory. Raises PlanError for a relative path, which may differ between nodes."""
    if not value.startswith("/") or not Path(value).name:
        raise PlanError(f"{key}={value}: set an absolute path, of a directory that all nodes see")
    return Path(value)


def for_a_cluster(arguments: list[str]) -> list[str]:
    """Returns launch.py's arguments plus those that a cluster needs. Raises PlanError if they conflict."""
    if any(re.fullmatch("plan=(true|yes|on|1)", argument, re.IGNORECASE) for argument in arguments):
        raise PlanError("plan=true needs no job of SLURM's: give it to launch.py itself")
    added = []
    for key, value in FIXED.items():
        given = [argument for argument in arguments if argument.partition("=")[0] == key]
        if any(argument != f"{key}={value}" for argument in given):
            raise PlanError(f"{given[0]}: a run on several nodes needs {key}={value}, which is set by itself")
        if not given:
            added.append(f"{key}={value}")
    return added + arguments


def assemble(body: str, settings: dict[str, str], run_dir: Path, arguments: list[str]) -> str:
    """Returns the text of the script: sbatch's options, the user's values, and the shell parts."""
    values = {
        "python": sys.executable,
        "launch": str(ROOT / "launch.py"),
        "run_dir": str(run_dir),
        "gpus": settings.get("gpus", "0"),
    }
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options(settings, run_dir)),
        *(f"{name}={shlex.quote(value)}" for name, value in values.items()),
        f"arguments=({' '.join(map(shlex.quote, arguments))})",
    ]
    parts = [(HERE / f"{name}.sh").read_text() for name in ("nodes", body)]
    return "\n".join([*lines, "", *parts])


def options(settings: dict[str, str], run_dir: Path) -> list[str]:
    """Returns the options of sbatch, one per line of the script."""
    given = [
        f"--{SBATCH[name]}={value}" for name, value in settings.items() if (name, value) != ("gpus", "0")
    ]
    whole = [] if "cpus" in settings else ["--exclusive"]
    if "cpus" not in settings and "mem" not in settings:
        whole.append("--mem=0")  # all memory of a node
    name = re.sub(r"[^\w.-]", "-", run_dir.name, flags=re.ASCII)
    return [
        f"--job-name={name}",
        *given,
        "--ntasks-per-node=1",
        *whole,
        "--no-kill",  # the run itself handles the loss of a node
        "--no-requeue",
        f"--signal=B:TERM@{TOLD_BEFORE_S}",
    ]
