"""The files of word problems: the same whoever makes them, and nothing held out among what is trained on."""

from pathlib import Path

import pyarrow.parquet
import pytest

from extensions.reasoning_gym.word_problems import make_heldout, make_train
from pipelinerl.components import build_domain
from pipelinerl.launcher.composing.compose import compose_config

OURS = ["domain=math", "domain.train=[word_problems]", "domain.heldout=[word_problems_heldout]"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("word_problems")
    make_train(directory / "train.parquet")
    make_heldout(directory / "heldout.parquet")
    return directory


def rows(path: Path) -> list[tuple[str, str]]:
    table = pyarrow.parquet.read_table(path).to_pylist()
    assert {(row["0"]["from"], row["1"]["from"]) for row in table} == {("human", "assistant")}
    return [(row["0"]["value"], row["1"]["ground_truth"]["value"]) for row in table]


def test_problems_are_short_have_small_whole_answers_and_are_asked_once(made):
    train, heldout = rows(made / "train.parquet"), rows(made / "heldout.parquet")
    questions = [question for question, _ in [*train, *heldout]]
    assert (len(train), len(heldout)) == (2000, 128) and len({*questions}) == 2128
    assert max(map(len, questions)) <= 170 and not any("final answer" in q for q in questions)
    assert all(0 <= int(answer) <= 20 for _, answer in [*train, *heldout])


def test_an_unfinished_file_is_never_under_its_name(tmp_path, monkeypatch):
    def killed(source, target):
        raise InterruptedError

    monkeypatch.setattr("contracts.support.files.os.replace", killed)
    with pytest.raises(InterruptedError):
        make_heldout(tmp_path / "heldout.parquet")
    assert not list(tmp_path.iterdir())


def test_they_are_sources_of_domain_math(made, tmp_path, monkeypatch):
    config = compose_config(OURS)
    monkeypatch.chdir(tmp_path)
    math = build_domain(config)
    assert (math.train_size, math.heldout_size) == (2000, 128)
    assert {path.name for path in Path(".cache/easy_word_problems").iterdir()} == {
        "train.parquet",
        "heldout.parquet",
    }
    heldout = Path(".cache/easy_word_problems/heldout.parquet")
    assert heldout.read_bytes() == (made / "heldout.parquet").read_bytes()
    assert math.heldout_problem(0).problem_id == "word_problems_heldout/0"
