"""A plan and a start say what this machine has too little of."""

from collections import namedtuple

import psutil
import pytest

from contracts.model_shape import ModelShape
from pipelinerl.launcher.checking import room
from pipelinerl.launcher.composing.compose import compose_config

GIB = 2**30
Left = namedtuple("Left", ["available"])
SETTINGS = ["model.path=nowhere", "sampling.max_prompt_tokens=64"]
SMOLLM2 = ModelShape(
    layers=30, hidden_size=576, intermediate_size=1536, heads=9, kv_heads=3, head_dim=64, vocab_size=49_152,
    context=8192, tied=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("memory", "disk", "words"),
    [
        (8 * GIB, 8 * GIB, []),
        (3 * GIB, 8 * GIB, ["this machine has 3.0 GiB of memory left, and the run takes at least "]),
        (8 * GIB, GIB, ["the disk of ", " has 1.0 GiB for what takes "]),
    ],
    ids=["enough", "memory", "disk"],
)
def test_a_shortage_is_one_line(memory, disk, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Left(memory))
    monkeypatch.setattr(room.shutil, "disk_usage", lambda path: namedtuple("Usage", ["free"])(disk))
    room.check_room(compose_config(SETTINGS), SMOLLM2, tmp_path / "run")
    said = capsys.readouterr().out
    assert said.count("warning: ") == len(said.splitlines()) == bool(words)
    assert all(word in said for word in words)
