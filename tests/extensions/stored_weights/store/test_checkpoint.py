import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from contracts.conformance.tiny_model import make_tiny_model
from extensions.stored_weights.store.checkpoint import copy_checkpoint, main
from extensions.stored_weights.store.errors import BadDigestError
from extensions.stored_weights.store.layout import object_path
from extensions.stored_weights.store.signing import SigningKey
from extensions.stored_weights.store.writer import Published
from pipelinerl.paths import ROOT
from tests.extensions.stored_weights.store.builders import new_writer, publish, some_weights, stepped

MODEL_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory) -> Path:
    return Path(make_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def model(model_directory):
    return AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def store(tmp_path_factory, model_directory, model) -> Path:
    """Returns a store with the model as version 5 of a run."""
    store = tmp_path_factory.mktemp("checkpoint") / "store"
    paths = [model_directory / name for name in MODEL_FILES]
    tied = {"lm_head.weight": "model.embed_tokens.weight"}
    writer = new_writer(store, file_bytes=30_000, model_files=paths, tied=tied)
    assert len(published(writer, model, tied).manifest.full.files) > 3
    writer.close()
    return store


def published(writer, model, tied) -> Published:
    tensors = [
        (name, "bfloat16", tuple(tensor.shape), tensor.contiguous().view(torch.uint8).numpy())
        for name, tensor in model.state_dict().items()
        if name not in tied
    ]
    return writer.publish(writer.write_full_files(5, tensors), 0)


def test_transformers_loads_what_the_command_copies(tmp_path, store, model):
    key = SigningKey.load_or_create(store.parent / "run.key").public.ed25519
    command = [
        sys.executable,
        "-m",
        "extensions.stored_weights.store.checkpoint",
        str(store),
        "run",
        "5",
        "--key",
        key,
    ]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"version 5 of run is in {tmp_path}/out\n"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    expected = model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())
    assert AutoTokenizer.from_pretrained(tmp_path / "out").decode([2]) == "\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "out").iterdir())  # none is the store's


@pytest.mark.parametrize("damage", ["altered", "cut"])
def test_a_damaged_object_is_not_copied(tmp_path, damage):
    store = tmp_path / "store"
    writer = new_writer(store)
    [file] = publish(writer, 0, some_weights()).manifest.full.files
    writer.close()
    path = store / object_path(file.sha256)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content if damage == "altered" else content[:-1])
    with pytest.raises(BadDigestError):
        copy_checkpoint(store, "run", 0, tmp_path / "out", None)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


def argv(*arguments) -> list[str]:
    return ["checkpoint", *map(str, arguments)]


def test_what_cannot_be_copied_is_said_in_one_line(tmp_path, monkeypatch):
    store = tmp_path / "store"
    writer = new_writer(store, deltas=True)
    publish(writer, 3, some_weights())
    publish(writer, 4, stepped(some_weights(), 1))
    writer.close()
    key = SigningKey.load_or_create(tmp_path / "other.key").public.ed25519
    for arguments, message in (
        ((store, "run", 7, "--out", tmp_path / "out"), "not in .*store; versions that are: 3, 4"),
        ((store, "other", 3, "--out", tmp_path / "out"), "versions that are: none"),
        ((store, "run", 4, "--out", tmp_path / "out"), "only stored as a delta of 3; name a full one"),
        ((store, "run", 3, "--out", tmp_path), "is there already: name a new directory"),
        ((store, "run", 3, "--out", tmp_path / "out", "--key", key), "signature: no key of the run"),
    ):
        monkeypatch.setattr("sys.argv", argv(*arguments))
        with pytest.raises(SystemExit, match=f"^cannot copy version {arguments[2]}: .*{message}") as ended:
            main()
        assert "\n" not in ended.value.code
