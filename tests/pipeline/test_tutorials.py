"""Tutorials, executed as they stand. Their runs are made small by overrides."""

from tests.pages import execute
from tests.pipeline.runs import MINIATURE

SMALL = (*MINIATURE, "max_steps=3")


def test_your_first_objective(tmp_path):
    execute("write-an-objective", tmp_path, *SMALL)


def test_train_on_gpus(tmp_path):
    execute("tutorial-gpus", tmp_path)
