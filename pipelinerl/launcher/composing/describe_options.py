"""What `launch.py --help` lists: choices, experiments, commands, and keys with values and sentences."""

from collections.abc import Iterator

from pipelinerl.launcher.composing.choices import PARTS_OF_ALL, choices_of, chosen_by_default, sentence_of
from pipelinerl.launcher.composing.describe_commands import described_commands
from pipelinerl.launcher.composing.describe_keys import described_keys

COLUMN = 36  # where the sentences begin


def describe_options() -> Iterator[str]:
    """Yields the lines. Keys have the demo's values."""
    choices = chosen_by_default()
    yield "Choices, each a folder of conf/ with one file a choice; the demo's choice is shown:"
    for group, chosen in choices.items():
        yield _line(f"{group}={'null' if chosen is None else chosen}", ", ".join(choices_of(group)))
    yield ""
    yield "Experiments, which set keys of every section:"
    for group in PARTS_OF_ALL:
        for choice in choices_of(group):
            yield _line(f"+{group}={choice}", sentence_of(group, choice))
    yield ""
    yield "Other commands, each with --help:"
    for command, sentence in described_commands():
        yield _line(command, sentence)
    yield ""
    yield "Keys, with the demo's values. Other choices have other options: their files in conf/ list them."
    for setting, sentence in described_keys(choices):
        yield _line(setting, sentence)


def _line(name: str, sentence: str) -> str:
    return f"  {name:<{COLUMN}}  {sentence}".rstrip()
