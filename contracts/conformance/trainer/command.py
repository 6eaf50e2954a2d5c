"""`python -m contracts.conformance trainer`. Light: the processes that checks start import it again."""

import argparse
import json
import shlex
import sys


def add_trainer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--adapter", required=True, metavar="PACKAGE.CLASS", help="a TrainerWorker")
    parser.add_argument(
        "--option", action="append", default=[], type=_option, metavar="KEY=VALUE", help="of its constructor"
    )
    parser.add_argument("--ranks", type=int, default=1, help="processes, one a rank (default 1)")
    parser.add_argument("--model", help="a small model's directory (default: two tiny ones, made here)")
    parser.add_argument("--only", action="append", metavar="CODE", help="this guarantee: T1 ... T7")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.set_defaults(run=run)


def _option(text: str) -> tuple[str, object]:
    """`logits_chunk=64`, `fp32_head=false`: JSON where it is JSON, else the string itself."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def run(arguments: argparse.Namespace) -> int:
    """0: every guarantee holds; 1: one does not; 2: nothing could be tried."""
    from transformers.utils import logging

    from contracts.conformance.table import as_json, kept, print_table
    from contracts.conformance.trainer.kit import check_trainer

    logging.disable_progress_bar()
    try:
        verdicts = check_trainer(
            arguments.adapter,
            ranks=arguments.ranks,
            options=dict(arguments.option),
            model=arguments.model,
            only=arguments.only,
            device=arguments.device,
        )
    except ValueError as error:
        print(f"cannot check: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(as_json(verdicts))
    else:
        title = f"{arguments.adapter}, {arguments.ranks} rank(s), {arguments.device}"
        print_table(title, verdicts, _command(arguments))
    return 0 if kept(verdicts) else 1


def _command(arguments: argparse.Namespace) -> str:
    words = ["python", "-m", "contracts.conformance", "trainer", "--adapter", arguments.adapter]
    words += [word for key, value in arguments.option for word in ("--option", f"{key}={json.dumps(value)}")]
    words += ["--ranks", str(arguments.ranks), "--device", arguments.device]
    words += ["--model", arguments.model] if arguments.model else []
    return shlex.join(words)
