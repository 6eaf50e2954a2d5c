"""Runs episodes of an environment of `verifiers`.

`__main__.py CONFIG` serves attempts, each a line of JSON as `extensions.agents.programs.serving` says.
`__main__.py CONFIG --tasks` prints the tasks of both splits, a line each; after a fault, a last line has its
`error`. CONFIG is JSON, written by `Verifiers`.
"""

import asyncio
import importlib.metadata
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TextIO

VERSION = "0.4.0"
LONGEST_WORDS = 2000


def installed() -> str:
    """Returns the version of the package; "" without it."""
    try:
        return importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        return ""


def problem_of(error: BaseException) -> str:
    """Returns a fault in one line, with the place of one that is not known by its words."""
    words = " ".join(str(error).split())[:LONGEST_WORDS]
    if isinstance(error, ValueError | ModuleNotFoundError):
        return words
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = (
        f"{error.filename}:{error.lineno}"
        if isinstance(error, SyntaxError)
        else f"{place.filename}:{place.lineno}"
    )
    return f"{type(error).__name__}: {words} ({where})"


def main(given: dict, lines: TextIO, output: TextIO, is_listing: bool) -> None:
    """Serves, or prints the tasks. A configuration that cannot be used ends it with one line."""
    from verifiers_worker.config import config_of
    from verifiers_worker.episodes import Server
    from verifiers_worker.tasks import listed

    try:
        config, seat = config_of(given["env"], given["variables"])
        if is_listing:
            for task in listed(config, seat, given):
                print(json.dumps(task), file=output)
            return
        server = Server(config, seat, given, output)
    except (Exception, SystemExit) as error:
        logging.exception("the environment cannot be used")
        if is_listing:
            print(json.dumps({"error": problem_of(error)}), file=output)
        sys.exit(problem_of(error))
    asyncio.run(server.serve(lines))


if __name__ == "__main__":
    if installed() != VERSION:
        found = f"verifiers {installed()}" if installed() else "no verifiers"
        sys.exit(f"it has {found}, and verifiers {VERSION} is needed: make verifiers-env")
    given = json.loads(sys.argv[1])
    lines = os.fdopen(os.dup(0))
    output = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # programs of an environment read nothing of the protocol,
    os.dup2(2, 1)  # and what they print is no answer
    logging.basicConfig(stream=sys.stderr)
    sys.path[:0] = given["path"]
    sys.path.append(str(Path(__file__).parents[1]))
    with output:
        main(given, lines, output, "--tasks" in sys.argv)
