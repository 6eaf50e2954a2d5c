"""The paths of the project's own files."""

import os
from pathlib import Path

from pipelinerl.errors import PlanError

ROOT = Path(__file__).resolve().parents[1]  # directory of launch.py, conf/ and the engines' environments
OWNER_ALONE = 0o700  # the mode of a run's directories, because logs and streams contain prompts and settings


def importable() -> str:
    """Returns the PYTHONPATH of jobs: the project, this process's PYTHONPATH, and the current directory."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join(dict.fromkeys([str(ROOT), *map(os.path.abspath, given), os.getcwd()]))


def conf_directories() -> list[Path]:
    """Returns the `conf/` of project, current directory and extensions; earlier ones have priority."""
    found = [ROOT / "conf", Path.cwd() / "conf", *sorted(ROOT.glob("extensions/*/conf"))]
    return [conf for conf in dict.fromkeys(found) if conf.is_dir()]


def conf_directory() -> Path:
    """Returns the project's `conf/`. Raises PlanError in an installed wheel, which has none."""
    conf = ROOT / "conf"
    if not conf.is_dir():
        raise PlanError(f"there is no {conf}: a wheel does not bring it; use a checkout of the project")
    return conf
