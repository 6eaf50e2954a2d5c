"""Every number of a recipe says where it is from: a paper's section, a file of published code at a commit, or
"ours"."""

import re

import pytest

from pipelinerl.launcher.composing.choices import files_of

EXPERIMENTS = sorted(files_of("exp").values())
NUMBER = re.compile(r"[:\[,{-]\s+-?\d[\d.e_-]*\s*(?=[,}\]]|$)|\[-?\d")
SOURCE = re.compile(r"\bours\b|\bpaper\b|\bblog post\b|§|eq\. \d|Table \d|config\.json|@[0-9a-f]{7}\b")


def unsourced(text: str) -> list[str]:
    """The lines that set a number and do not say where it is from."""
    lines = [line.partition("#") for line in text.splitlines()]
    return [value.strip() for value, _, source in lines if NUMBER.search(value) and not SOURCE.search(source)]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_number_of_a_recipe_has_its_source(experiment):
    assert unsourced(experiment.read_text()) == []
