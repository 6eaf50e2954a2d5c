"""Checks an adapter and prints the guarantees that it breaks.

    python -m contracts.conformance inference --url URL ... --model PATH [--only G3] [--part NAME] [--json]
    python -m contracts.conformance trainer --adapter PACKAGE.CLASS [--ranks 2] [--only T2] [--part NAME]
    python -m contracts.conformance model DIR [--kind hybrid]

The exit status is 0 if every declared guarantee holds, 1 if one does not, and 2 if nothing could be checked.
"""

import argparse
import sys
from collections.abc import Callable

from contracts.support.command_line import command_parser


def main() -> int:
    """Runs the command and returns its exit status."""
    try:
        options = parse()
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except ModuleNotFoundError as error:
        print(f'cannot check: {error}; the kit needs: pip install "pipelinerl[conformance]"', file=sys.stderr)
        return 2


def parse() -> argparse.Namespace:
    """Parses the command line. Raises ModuleNotFoundError without what the kit needs."""
    from contracts.conformance.inference.command import add_inference
    from contracts.conformance.trainer.command import add_trainer

    parser = command_parser("contracts.conformance", __doc__)
    commands = parser.add_subparsers(required=True)
    add_inference(
        commands.add_parser("inference", help="an inference server, over HTTP and its weight group")
    )
    add_trainer(commands.add_parser("trainer", help="a trainer backend, a class that is importable here"))
    model = commands.add_parser("model", help="write a tiny random model, to serve or to train")
    model.add_argument("directory")
    model.add_argument("--kind", choices=("plain", "scaled", "hybrid", "sinks"), default="plain")
    model.set_defaults(run=write_model)
    return parser.parse_args()


def write_model(options: argparse.Namespace) -> int:
    """Writes a tiny random model and prints its directory."""
    from contracts.conformance.tiny_model import KINDS

    print(KINDS[options.kind](options.directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
