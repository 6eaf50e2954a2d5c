"""The parser of a command's arguments, whose help is the docstring of the command's module."""

import argparse


def command_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Returns the parser of `python -m NAME`. `description` is printed line by line as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
