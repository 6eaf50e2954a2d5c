"""Prints the records of a run, the history of one group, or answers to held-out problems.

    python -m extensions.viewer.records list runs/latest
    python -m extensions.viewer.records show runs/latest rollouts --tail 3
    python -m extensions.viewer.records show runs/latest rows --group 17
    python -m extensions.viewer.records group runs/latest 17
    python -m extensions.viewer.records answers runs/latest

`group` prints what happened to a group, across all streams and resumptions of the run. `answers` prints
ten held-out problems, each with its first attempt in the first and in the last evaluation. The command
prints what is recorded and exits. It does not follow a running run.
"""

import argparse
import os
import sys
from collections import deque
from pathlib import Path

from contracts.support.command_line import command_parser
from contracts.support.messages import one_line
from contracts.support.sizes import describe_bytes
from extensions.viewer.records.group_history import read_history
from extensions.viewer.records.group_story import story_lines
from extensions.viewer.records.held_out import answers
from extensions.viewer.records.show import concerns_group, describe, load_tokenizer
from pipelinerl.errors import PlanError
from pipelinerl.streams.base import StreamError, Streams
from pipelinerl.streams.of_run import recorded_streams
from pipelinerl.streams.run_directory import InvalidInputError, check_run


def main() -> int:
    """Runs the command. Returns the exit status."""
    arguments = parse_arguments()
    try:
        check_run(arguments.run_dir)
        with recorded_streams(arguments.run_dir) as streams:
            return arguments.command(streams, arguments)
    except (InvalidInputError, PlanError, StreamError) as error:
        print(f"extensions.viewer.records: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head` has closed the pipe; nothing must be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # something else lies where the streams are
        print(f"extensions.viewer.records: {one_line(error)}", file=sys.stderr)
        return 1


def parse_arguments() -> argparse.Namespace:
    """Parses the command line. `command` is the function to call."""
    parser = command_parser("extensions.viewer.records", __doc__)
    commands = parser.add_subparsers(required=True)
    listing = commands.add_parser("list", help="print the streams with their numbers of records")
    listing.set_defaults(command=list_streams)
    showing = commands.add_parser("show", help="print the records of a stream")
    showing.set_defaults(command=show_stream)
    telling = commands.add_parser("group", help="print the history of a group")
    telling.set_defaults(command=tell_group)
    answering = commands.add_parser("answers", help="print answers to held-out problems")
    answering.set_defaults(command=show_answers)
    for command in (listing, showing, telling, answering):
        command.add_argument("run_dir", type=Path)
    showing.add_argument("stream")
    showing.add_argument("--tail", type=int, metavar="N", help="only the last N records")
    showing.add_argument("--group", type=int, metavar="G", help="only records of group G")
    telling.add_argument("group", type=int, metavar="G")
    answering.add_argument("--problems", type=_count, default=10, metavar="N", help="how many; 10 by default")
    return parser.parse_args()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return int(text)


def list_streams(streams: Streams, arguments: argparse.Namespace) -> int:
    for name in streams.names():
        reader = streams.reader(name)
        first = reader.first_offset()
        count = 0
        end = first
        for entry in reader.read(first, timeout_s=0):
            count = count + 1
            end = entry.next_offset
        trimmed = f"  (what lay before offset {first} is trimmed)" if first else ""
        print(f"{name:20} {count:8} records  {describe_bytes(end - first):>10}{trimmed}")
    return 0


def show_stream(streams: Streams, arguments: argparse.Namespace) -> int:
    """Prints the records of one stream."""
    if arguments.stream not in streams.names():
        known = ", ".join(streams.names()) or "none yet"
        raise InvalidInputError(f"no stream {arguments.stream!r} in {arguments.run_dir}; there are: {known}")
    reader = streams.reader(arguments.stream)
    records = (entry.record for entry in reader.read(reader.first_offset(), timeout_s=0))
    if arguments.group is not None:
        records = (record for record in records if concerns_group(record, arguments.group))
    if arguments.tail is not None:
        records = deque(records, maxlen=max(arguments.tail, 0))
    tokenizer = load_tokenizer(arguments.run_dir) if "rollouts" in arguments.stream else None
    for record in records:
        print(describe(record, tokenizer))
    return 0


def tell_group(streams: Streams, arguments: argparse.Namespace) -> int:
    """Prints the history of a group."""
    history = read_history(streams, arguments.group)
    if history.started is None:
        there = f"groups 0 to {history.groups - 1}" if history.groups else "none yet"
        raise InvalidInputError(f"no group {arguments.group} in {arguments.run_dir}; there are: {there}")
    for line in story_lines(history, load_tokenizer(arguments.run_dir)):
        print(line)
    return 0


def show_answers(streams: Streams, arguments: argparse.Namespace) -> int:
    """Prints held-out problems with their first and last answers."""
    tokenizer = load_tokenizer(arguments.run_dir)
    for line in answers(streams, arguments.problems, tokenizer):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
