"""What the command lines of the benchmarks share: numbers, names, settings and directories."""

import argparse
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from contracts.support.messages import one_line
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.paths import ROOT


def whole_from(least: int) -> Callable[[str], int]:
    """Returns an argparse type: a whole number of at least `least`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} on, not {text!r}")
        return int(text)

    return read


positive_int = whole_from(1)


def seeds(text: str) -> list[int]:
    """Reads whole numbers that are separated by commas. One that is there twice counts once."""
    return list(dict.fromkeys(whole_from(0)(part) for part in text.split(",")))


def names_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Returns an argparse type: known names, separated by commas. One that is there twice counts once."""

    def read(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    return read


def refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """Ends the command with one line on standard error and status 2."""
    parser.exit(2, f"{parser.prog}: {message}\n")


def composed(parser: argparse.ArgumentParser, overrides: list[str]) -> RunConfig:
    """Returns the configuration of these settings, or refuses them."""
    try:
        return compose_config(overrides)
    except (PlanError, ValidationError) as error:
        refuse(parser, one_line(error))


def new_directory(parser: argparse.ArgumentParser, parent: Path) -> Path:
    """Makes a directory in `parent`, named by the present time, and returns it, or refuses `parent`."""
    made = ROOT / parent / time.strftime("%Y%m%d-%H%M%S")
    try:
        made.mkdir(parents=True)
    except OSError as error:
        refuse(parser, f"--out {parent}: no directory can be made there: {error.strerror}")
    return made
