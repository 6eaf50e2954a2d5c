"""The command `python -m contracts.conformance trainer`.

It imports few modules, because every process that a check starts imports them again.
"""

import argparse
import json
import shlex
import sys
from contextlib import redirect_stdout
from io import StringIO

from contracts.support.messages import one_line


def add_trainer(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to `parser`."""
    parser.add_argument("--adapter", required=True, metavar="PACKAGE.CLASS", help="a TrainerWorker")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=_option,
        metavar="KEY=VALUE",
        help="of its constructor; may be repeated",
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes, one a rank (default 2)")
    parser.add_argument("--model", help="a small model's directory (default: two tiny ones, made here)")
    parser.add_argument(
        "--only", action="append", metavar="CODE", help="this guarantee, T1 ... T10; may be repeated"
    )
    parser.add_argument("--part", metavar="NAME", help="this part of the guarantee alone, e.g. orders")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--patience-s",
        type=float,
        default=120,
        help="the longest that one session of the ranks may take (default 120); more where kernels compile",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.set_defaults(run=run)


def _option(text: str) -> tuple[str, object]:
    """Parses `logits_chunk=64` or `fp32_head=false`. A value that is not JSON is a string."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def run(arguments: argparse.Namespace) -> int:
    """Runs the checks and prints the verdicts.

    Returns 0 if every guarantee holds, 1 if one does not, 2 if nothing could be checked.
    """
    from transformers.utils import logging

    from contracts.conformance.table import as_json, exit_status, print_table
    from contracts.conformance.trainer.kit import check_trainer

    logging.disable_progress_bar()
    asked = {
        "ranks": arguments.ranks,
        "options": dict(arguments.option),
        "model": arguments.model,
        "device": arguments.device,
        "patience_s": arguments.patience_s,
    }
    try:
        with redirect_stdout(StringIO()):  # a backend's output does not belong in the table or the JSON
            verdicts = check_trainer(arguments.adapter, only=arguments.only, part=arguments.part, **asked)
    except ValueError as error:
        print(f"cannot check: {one_line(error)}", file=sys.stderr)
        return 2
    if arguments.json:
        print(as_json(verdicts))
    else:
        title = f"{arguments.adapter}, {arguments.ranks} rank(s), {arguments.device}"
        print_table(title, verdicts, command_line(arguments.adapter, **asked))
    return exit_status(verdicts)


def command_line(
    adapter: str,
    *,
    ranks: int = 2,
    options: dict[str, object] | None = None,
    model: str | None = None,
    device: str = "cpu",
    patience_s: float = 120,
) -> str:
    """Returns the shell command equivalent to `check_trainer` with these arguments."""
    command = ["python", "-m", "contracts.conformance", "trainer", "--adapter", adapter]
    for key, value in (options or {}).items():
        command += ["--option", f"{key}={json.dumps(value)}"]
    command += ["--model", model] if model else []
    command += ["--ranks", str(ranks), "--device", device, "--patience-s", f"{patience_s:g}"]
    return shlex.join(command)
