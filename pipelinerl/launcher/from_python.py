"""Runs from Python, such as a notebook: `pipelinerl.run` starts the launcher and follows it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from contracts.support.die_with_parent import die_with_parent
from pipelinerl.paths import ROOT


class RunFailedError(RuntimeError):
    """A run did not succeed. The message is the launcher's; `run_dir` has the logs, or is None."""

    def __init__(self, message: str, run_dir: Path | None):
        super().__init__(message)
        self.run_dir = run_dir


def run(*overrides: str, progress: Callable[[str], None] = print, **settings: Any) -> dict[str, Any]:
    """Runs a configuration to its end, and returns its summary, which has `run_dir` besides.

    overrides: as on the command line of launch.py, such as "+exp=smollm2" or "optimizer.lr=1e-4". settings:
    keys of the configuration with Python values; a dict holds keys of a section. progress: called with each
    line of the launcher's output. An interruption (KeyboardInterrupt) ends all processes of the run, and is
    raised again. Raises RunFailedError if the run fails or is refused.
    """
    run_dir = Path(settings.pop("run_dir", None) or time.strftime("runs/%Y%m%d-%H%M%S")).absolute()
    words = [f"run_dir={_value(str(run_dir))}", *overrides, *_words(settings)]
    launcher = subprocess.Popen(
        [sys.executable, str(ROOT / "launch.py"), *words],
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # an interruption of a notebook's kernel is passed on once, by us
        preexec_fn=partial(die_with_parent, signal.SIGTERM),
    )
    try:
        last = _followed(launcher, progress)
    except BaseException:
        _end(launcher, progress)
        raise
    if launcher.returncode:
        raise RunFailedError(last.removeprefix("launch.py: "), run_dir if run_dir.exists() else None)
    summary = run_dir / "summary.json"
    found = json.loads(summary.read_text()) if summary.exists() else {}  # a plan has none
    return found | {"run_dir": str(run_dir)}


def _followed(launcher: "subprocess.Popen[str]", progress: Callable[[str], None]) -> str:
    """Passes the launcher's lines on until it ends. Returns the last one."""
    last = ""
    for line in launcher.stdout:
        last = line.strip() or last
        progress(line.rstrip("\n"))
    launcher.wait()
    return last


def _end(launcher: "subprocess.Popen[str]", progress: Callable[[str], None]) -> None:
    """Ends the launcher, which ends all processes of its run, and passes on what it says."""
    launcher.send_signal(signal.SIGINT)
    try:
        _followed(launcher, progress)
    finally:
        launcher.kill()  # does nothing if it has ended
        launcher.wait()


def _words(settings: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, dict) and "_target_" in value and not prefix:  # another class, with its options
            yield f"~{name}"
            yield f"+{name}={_value(value)}"
        elif isinstance(value, dict):
            yield from _words(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={_value(value)}"


def _value(value: Any) -> str:
    """Returns a value in the grammar of the command line."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{','.join(map(_value, value))}]"
        case dict():
            return f"{{{','.join(f'{name}:{_value(each)}' for name, each in value.items())}}}"
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
