"""Which samples are the shortest right ones, which they are preferred to, and the command on a server."""

import json

import pytest

from extensions.tools.shortest import Sample, rejected, sample_of, shortest
from pipelinerl.components import build_domain
from pipelinerl.domains.demonstration_rows import read_rows
from pipelinerl.launcher.composing.compose import compose_config
from tests.builders import completion, rollout
from tests.forked import Forked
from tests.inference_adapters.servers import serving, wait_ready


def sample(tokens: int, right: bool) -> Sample:
    return Sample("p", completion([1], [2] * tokens), right)


@pytest.mark.parametrize(
    ("right", "wrong", "preferred", "others"),
    [
        ([], [2], None, []),
        ([2], [], 2, []),
        ([4, 2], [], 2, [4]),
        ([4, 6, 5], [], 4, [6]),  # half as long again, or more
        ([2, 3], [2, 3], 2, [3, 3]),
        ([4], [4, 3, 5], 4, [5]),
    ],
)
def test_the_shortest_right_sample_is_preferred_to_longer_ones(right, wrong, preferred, others):
    samples = [*(sample(tokens, True) for tokens in right), *(sample(tokens, False) for tokens in wrong)]
    best = shortest(samples)
    assert (best and best.tokens) == preferred
    assert [s.tokens for s in (rejected(samples, best) if best else [])] == others


def test_what_is_no_sample():
    assert sample_of(rollout(0, status="failed:timeout")) is None
    assert sample_of(rollout(0, completions=[completion([1], [2])] * 2)) is None
    assert not sample_of(rollout(0, metrics={"success": 1.0}, status="truncated")).right
    assert sample_of(rollout(0, metrics={"success": 1.0})).right


def test_the_command_writes_files_that_recipes_learn_from(tmp_path):
    out, pairs = tmp_path / "short.jsonl", tmp_path / "pairs.jsonl"
    with serving("inference_adapters.scripted") as server:
        wait_ready(server.url)
        command = ["-m", "extensions.tools.shortest", "--url", server.url]
        command += ["--out", str(out), "--pairs", str(pairs), "--problems", "12"]
        settings = ("inference=scripted", "sampling.max_tokens=250", "sampling.temperature=4", "~domain")
        chance = "+domain._target_=tests.scripted_domain.ScriptedDomain"
        made = Forked(*command, *settings, chance)
        said, errors = made.communicate()
    assert made.returncode == 0, errors
    assert said.startswith("12 problems, ")
    answers, preferences = read_rows(out), read_rows(pairs)
    shortest_of = {row.problem_id: row.token_ids for row in answers}
    assert 0 < len(answers) <= 12 and len(preferences) > 4
    for row in preferences:
        assert row.chosen_token_ids == shortest_of[row.problem_id]
        assert len(row.rejected_token_ids) > len(row.chosen_token_ids)
    for recipe, path, answers_a_line in (("sft", out, 1), ("dpo", pairs, 2)):
        domain = build_domain(compose_config([f"+exp={recipe}", f"domain.path={path}"]))
        assert domain.demonstrated == answers_a_line
    assert json.loads(out.read_text().splitlines()[0]).keys() == {
        "problem_id",
        "prompt_token_ids",
        "token_ids",
    }
