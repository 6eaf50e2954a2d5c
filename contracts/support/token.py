"""Reads the servers' bearer token from the environment or a file, never from the command line."""

import argparse
import os
from pathlib import Path
from typing import Any

TOKEN_VARIABLE = "PIPELINERL_TOKEN"
OTHERS_MAY_READ = 0o077


class TokenError(ValueError):
    """Raised if a token is not readable or not valid."""


def add_token_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--token-file`, and a `--token` that exits with the reason why it is refused."""
    parser.add_argument(
        "--token-file", type=Path, help=f"file with the bearer token, unless {TOKEN_VARIABLE} holds it"
    )
    parser.add_argument("--token", nargs="?", action=_RefusedToken, help=argparse.SUPPRESS)


def token_of(file: Path | None) -> str | None:
    """Returns the token in `file`, or that of the environment if `file` is None. None if neither has one.

    Raises TokenError if other users may read the file, or a header cannot carry the token.
    """
    token = os.environ.get(TOKEN_VARIABLE) or None
    if file is not None:
        token = _read(file)
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        where = file or TOKEN_VARIABLE
        raise TokenError(f"{where}: a token is printable ASCII without spaces, and not empty")
    return token


def _read(file: Path) -> str:
    try:
        if file.stat().st_mode & OTHERS_MAY_READ:
            raise TokenError(f"other users may read {file}: chmod 600 it")
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(f"no token can be read from {file}: {error}") from error


class _RefusedToken(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        parser.exit(
            2,
            "--token is refused, because every user of this machine can read a command line: "
            f"set {TOKEN_VARIABLE}, or give --token-file PATH\n",
        )
