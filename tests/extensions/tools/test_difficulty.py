"""The offline filter: the command against a real server, and the domain that its file makes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from extensions.tools.difficulty import main, with_system_prompt
from pipelinerl.components import build_domain, build_sampler
from pipelinerl.domains.base import Problem
from pipelinerl.domains.mixture import Mixture
from pipelinerl.domains.subset import Selection, Subset
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.paths import ROOT
from tests.inference_adapters.servers import serving, wait_ready
from tests.samplers.domains import Labelled

FOURTHS = ("~domain", "+domain._target_=tests.samplers.domains.Fourths")
MINIATURE = ("inference=scripted", "sampling.max_tokens=4", "rollout.retries=0")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("inference_adapters.scripted") as server:
        wait_ready(server.url)
        yield server.url


def difficulty(url: str, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "extensions.tools.difficulty", "--url", url, "--out", str(out)]
    return subprocess.run([*command, *MINIATURE, *arguments], cwd=ROOT, capture_output=True, text=True)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def refused(url: str, out: Path, *arguments: str) -> str:
    """The one line with which the command refuses."""
    with pytest.raises(SystemExit) as refusal:
        main(["--url", url, "--out", str(out), *MINIATURE, *arguments])
    line = str(refusal.value)
    assert line.startswith("difficulty: ") and "\n" not in line
    return line


# --- the command ------------------------------------------------------------------------------


def test_problems_that_are_solved_sometimes_are_kept(url, tmp_path):
    out, bounds = tmp_path / "problems.jsonl", ("--low", "0.5", "--high", "0.5", "--problems", "40")
    result = difficulty(url, out, *bounds, "--attempts", "4", *FOURTHS)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == (
        "40 problems, 4 attempts each: 10 kept, 10 too easy, 10 too hard, 10 failed"
    )
    kept = lines(out)
    assert [line["index"] for line in kept] == list(range(1, 40, 4))
    assert kept[0] == {
        "index": 1,
        "problem_id": "train/1",
        "messages": [{"role": "user", "content": "labelled 1"}],
        "success": 0.5,
    }
    assert [path.name for path in tmp_path.iterdir()] == ["problems.jsonl"]

    inner = "+domain.domain={_target_: tests.samplers.domains.Fourths, seed: 0}"
    config = compose_config(["domain=subset", f"domain.path={out}", "~domain.domain", inner])
    subset = build_domain(config)
    assert (subset.name, subset.train_size, subset.heldout_size) == ("labelled", 10, 4)
    assert subset.train_problem(2).problem_id == "train/9"
    assert {build_sampler(config, subset).next(version=0) for _ in range(10)} <= {*range(10)}


def test_what_is_never_solved_under_another_system_prompt_is_kept(url, tmp_path):
    out = tmp_path / "problems.jsonl"
    bounds = ("--low", "0", "--high", "0", "--attempts", "2", "--problems", "8")
    assert difficulty(url, out, *bounds, *FOURTHS, "+domain.guarded=true").returncode == 0
    assert [line["index"] for line in lines(out)] == [0, 4]
    out.unlink()
    finished = difficulty(url, out, *bounds, "--system", "no reasoning", *FOURTHS, "+domain.guarded=true")
    assert finished.returncode == 0, finished.stderr
    assert [line["index"] for line in lines(out)] == [0, 1, 2, 4, 5, 6]
    assert all(message["role"] == "user" for line in lines(out) for message in line["messages"])


def test_another_system_prompt_takes_the_place_of_the_domains():
    system, user = ({"role": role, "content": role} for role in ("system", "user"))
    other = {"role": "system", "content": "no reasoning"}
    assert with_system_prompt(Problem("p", [system, user]), "no reasoning").messages == [other, user]
    assert with_system_prompt(Problem("p", [system, user]), None).messages == [system, user]


def test_nothing_to_keep_writes_no_file(url, tmp_path):
    result = difficulty(url, tmp_path / "out", "--low", "0.9", "--high", "0.95", "--problems", "4", *FOURTHS)
    assert result.returncode == 1 and "no problem is kept" in result.stderr
    assert not list(tmp_path.iterdir())


def test_it_gives_up_where_every_attempt_fails(url, tmp_path):
    broken = ("~domain", "+domain._target_=tests.scripted_domain.ScriptedDomain", "+domain.failing=1")
    result = difficulty(url, tmp_path / "out", *broken)
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1] == (
        "difficulty: 64 attempts in a row failed, the last with failed:VerifierBroke"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--low", "0.9"], "0 <= low <= high <= 1"),
        (["--attempts", "0"], "at least 1"),
        (["domain.task=gdc"], "did you mean gcd"),
        (["domain=subset"], "path is needed"),
        (["inference.model=null"], "set it to the model that the server serves"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(tmp_path, arguments, says):
    assert says in refused("http://127.0.0.1:9", tmp_path / "out", *arguments)


def test_no_server_and_a_file_that_exists(tmp_path):
    assert "no server answers" in refused("http://127.0.0.1:9", tmp_path / "out")
    kept = tmp_path / "kept"
    kept.write_text("precious")
    assert "never overwritten" in refused("http://127.0.0.1:9", kept)
    assert kept.read_text() == "precious"
    assert "is no directory" in refused("http://127.0.0.1:9", tmp_path / "none" / "out")


# --- the domain -------------------------------------------------------------------------------


def listed(path: Path, *indices: int, **changes: object) -> str:
    """A file of Labelled's problems."""
    lines = []
    for index in indices:
        messages = [{"role": "user", "content": f"labelled {index}"}]
        line = {"index": index, "problem_id": f"train/{index}", "messages": messages, "success": index / 10}
        lines.append(json.dumps(line | changes))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_subset_is_the_listed_problems_in_the_domains_order(tmp_path):
    inner = Labelled(10)
    subset = Subset(inner, listed(tmp_path / "list", 7, 2, 4))
    assert [subset.train_problem(i) for i in range(3)] == [inner.train_problem(i) for i in (2, 4, 7)]
    assert subset.heldout_problem(1) == inner.heldout_problem(1)
    assert [subset.difficulty(i) for i in range(3)] == pytest.approx([0.8, 0.6, 0.3])
    assert subset.parts == {"labelled": range(3)}


def test_the_parts_of_a_selection_are_those_that_have_a_problem_in_it():
    mixture = Mixture({"a": Labelled(3), "b": Labelled(3), "c": Labelled(3)})
    selection = Selection(mixture, [1, 2, 6, 8])
    assert selection.parts == {"a": range(2), "c": range(2, 4)}
    assert [selection.train_problem(i).domain for i in range(4)] == ["a", "a", "c", "c"]
    assert [selection.difficulty(i) for i in range(4)] == [2, 1, 3, 1]


@pytest.mark.parametrize(
    ("indices", "changes", "says"),
    [
        ((), {}, "lists no problem"),
        ((2, 10), {}, "its training problem 10 is another"),
        ((2,), {"problem_id": "train/3"}, "is not of this domain"),
        ((2,), {"messages": [{"role": "user", "content": "labelled 3"}]}, "is not of this domain"),
        ((2, 3, 2), {}, "lists the training problem 2 twice"),
        ((2,), {"success": "often"}, "is no list of problems"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_line(tmp_path, indices, changes, says):
    path = listed(tmp_path / "list", *indices, **changes)
    with pytest.raises(ValueError) as refusal:
        Subset(Labelled(10), path).train_size  # noqa: B018
    assert says in str(refusal.value) and "\n" not in str(refusal.value) and path in str(refusal.value)
