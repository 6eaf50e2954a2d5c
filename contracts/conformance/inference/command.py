"""The command `python -m contracts.conformance inference`.

Imports little, because each process that a check starts imports this module again.
"""

import argparse
import shlex
import sys
from dataclasses import Field, fields
from typing import Any

from contracts.conformance.inference.settings import Settings
from contracts.support.messages import one_line
from contracts.support.token import add_token_arguments, token_of


def add_inference(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options to `parser`."""
    parser.description = (
        "Check every guarantee of the inference contract on running servers. Plays the trainer; takes the "
        "servers over, so nobody else may use them meanwhile."
    )
    parser.add_argument(
        "--url", action="append", required=True, help="repeat it: several are one weight group"
    )
    parser.add_argument("--model", required=True, help="the Hugging Face directory that the servers serve")
    parser.add_argument(
        "--only", action="append", help="check this guarantee alone, e.g. G3; may be repeated"
    )
    parser.add_argument("--part", help="check this part of the guarantee alone, e.g. takeover")
    for each in fields(Settings):
        if each.name != "token":
            _add_setting(parser, each)
    add_token_arguments(parser)
    parser.add_argument("--trust-remote-code", action="store_true", help="run the model directory's own code")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.set_defaults(run=run)


def _add_setting(parser: argparse.ArgumentParser, setting: Field[Any]) -> None:
    name = _option(setting.name)
    help_text = setting.metadata["help"]
    if isinstance(setting.default, bool):
        parser.add_argument(name, action="store_true", help=help_text)
        return
    kind = type(setting.default) if setting.default is not None else str
    parser.add_argument(name, type=kind, default=setting.default, help=help_text)


def run(options: argparse.Namespace) -> int:
    """Runs the checks, prints the verdicts, and returns the exit status."""
    from contracts.conformance.inference.kit import check_inference
    from contracts.conformance.inference.reference import Reference
    from contracts.conformance.table import as_json, exit_status, print_table

    try:
        given = {each.name: getattr(options, each.name) for each in fields(Settings) if each.name != "token"}
        verdicts = check_inference(
            options.url,
            Reference(options.model, options.trust_remote_code),
            only=options.only,
            part=options.part,
            tell=lambda line: print(line, file=sys.stderr, flush=True),
            token=token_of(options.token_file),
            **given,
        )
    except (OSError, ValueError) as error:  # ConnectionError among them
        print(f"cannot check: {one_line(error)[:300]}", file=sys.stderr)
        return 2
    if options.json:
        print(as_json(verdicts, options.thorough))
    else:
        title = f"inference contract: {', '.join(options.url)}"
        print_table(title, verdicts, _command(options), options.thorough)
    return exit_status(verdicts)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _command(options: argparse.Namespace) -> str:
    """Returns the command line that repeats these checks, without the token."""
    command = ["python", "-m", "contracts.conformance", "inference"]
    for url in options.url:
        command += ["--url", url]
    command += ["--model", options.model, *(["--trust-remote-code"] if options.trust_remote_code else [])]
    for each in fields(Settings):
        if each.name != "token" and (value := getattr(options, each.name)) != each.default:
            command += [_option(each.name), *([] if value is True else [str(value)])]
    if options.token_file:
        command += ["--token-file", str(options.token_file)]
    return shlex.join(command)
