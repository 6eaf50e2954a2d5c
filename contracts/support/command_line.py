"""Creates argument parsers whose help is the docstring of the command's module."""

import argparse

from contracts.support.terminal import print_any_text


def command_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Returns the parser of `python -m NAME`. Its help prints `description` without reflowing the lines.

    It also calls `print_any_text` for this process.
    """
    print_any_text()
    return argparse.ArgumentParser(
        prog=f"python -m {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
