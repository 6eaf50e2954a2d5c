"""The parser of a command's arguments, whose help is the docstring of the command's module."""

import argparse

from contracts.support.terminal import print_any_text


def command_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Returns the parser of `python -m NAME`. `description` is printed line by line as it is written.

    From then on the process prints any text, also on a terminal that lacks characters of it.
    """
    print_any_text()
    return argparse.ArgumentParser(
        prog=f"python -m {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
