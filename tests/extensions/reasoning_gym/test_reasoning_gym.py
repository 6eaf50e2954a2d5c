import asyncio
import re

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from extensions.reasoning_gym.domain import ReasoningGym
from pipelinerl.domains.base import Answer, Domain
from pipelinerl.judging.wire import Judgement
from pipelinerl.paths import ROOT
from tests.builders import completion
from tests.extensions.reasoning_gym.hostile_answers import JSON, PARSE_EXPR
from tests.judging.here import judged_here

CONF = ROOT / "extensions/reasoning_gym/conf/domain"
SMALL = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


class Says:
    """A client that answers every chat with the same harmless text, which is judged in this process."""

    def __init__(self, domain: Domain, text: str) -> None:
        self.domain = domain
        self.text = text
        self.sent: list = []

    async def judged(self, verifier: str, task: object, text: str) -> Judgement:
        return judged_here(self.domain, verifier, task, text)

    async def chat(self, messages: list[dict[str, str]]) -> Answer:
        self.sent.append(messages)
        return Answer(self.text, completion([1], [2]))


def attempt(domain: ReasoningGym, text: str):
    return asyncio.run(domain.rollout(Says(domain, text), domain.train_problem(0)))


def configured(**overrides) -> ReasoningGym:
    config = OmegaConf.create({"seed": 0, "domain": OmegaConf.load(CONF / "reasoning_gym.yaml")})
    return instantiate(OmegaConf.merge(config, {"domain": overrides}).domain)


def questions(problems) -> set[str]:
    return {p.data["question"] for p in problems}


def test_no_question_is_both_trained_on_and_held_out_whatever_the_seeds():
    # 200 questions in all: seeds alone would make every one of them appear on both sides.
    one, other = (ReasoningGym("chain_sum", SMALL, seed=seed) for seed in (0, 1))
    train = questions(one.train_problem(i) for i in range(3000))
    heldout = questions(d.heldout_problem(i) for d in (one, other) for i in range(300))
    assert len(train) > 150 and len(heldout) > 5
    assert not train & heldout


def test_a_heldout_question_is_asked_once_until_there_are_no_more():
    domain = configured()
    assert len(questions(domain.heldout_problem(i) for i in range(500))) == 500
    small = ReasoningGym("chain_sum", SMALL)
    drawn = [small.heldout_problem(i) for i in range(60)]
    assert drawn.index(drawn[0], 1) == len(questions(drawn))


def test_a_problem_follows_from_seed_and_index_alone():
    first, second = ReasoningGym("gcd", seed=3), ReasoningGym("gcd", seed=3)
    in_order = [first.train_problem(i) for i in range(20)]
    assert second.train_problem(19) == in_order[19]
    assert second.heldout_problem(7) == first.heldout_problem(7)
    other = ReasoningGym("gcd", seed=4)
    assert not questions(in_order) & questions(other.train_problem(i) for i in range(20))


def test_problem_ids_are_distinct():
    domain = ReasoningGym("gcd")
    problems = [f(i) for f in (domain.train_problem, domain.heldout_problem) for i in range(50)]
    assert len({p.problem_id for p in problems}) == 100


def test_the_whole_question_is_the_prompt_unless_a_pattern_cuts_it():
    problem = ReasoningGym("chain_sum").train_problem(0)
    assert problem.messages == [{"role": "user", "content": problem.data["question"]}]
    cut = ReasoningGym("chain_sum", prompt_pattern=r"(\d.*=)").train_problem(0)
    assert cut.messages[0]["content"] == problem.data["metadata"]["expression"] + " ="
    preset = {"chain_sum": {"prompt_pattern": r"(\d.*=)"}}
    of_preset = ReasoningGym("chain_sum", presets=preset).train_problem(0)
    whole = ReasoningGym("chain_sum", presets=preset, prompt_pattern=None).train_problem(0)
    assert (of_preset.messages, whole.messages) == (cut.messages, problem.messages)
    with pytest.raises(ValueError, match="matches nothing"):
        ReasoningGym("chain_sum", prompt_pattern="(no such text)").train_problem(0)


def test_a_system_prompt_of_the_library_opens_the_conversation():
    messages = ReasoningGym("gcd", system_prompt="simple").train_problem(0).messages
    assert [m["role"] for m in messages] == ["system", "user"]
    assert "<answer>" in messages[0]["content"]


def test_the_library_scores_the_answer():
    domain = ReasoningGym("chain_sum", SMALL)
    right = domain.train_problem(0).data["answer"]
    solved = attempt(domain, f" {right}\n")
    assert (solved.reward, solved.success, len(solved.completions)) == (1.0, True, 1)
    assert attempt(domain, f"I think <answer>{right}</answer>").success
    assert not attempt(domain, f"<answer>{right}</answer> no, <answer>77</answer>").success
    partly = attempt(domain, f"{right}, or so")
    assert 0 < partly.reward < 1 and not partly.success
    assert attempt(domain, "").reward == 0


def test_the_config_asks_sums_of_two_numbers_of_one_or_two_digits():
    domain = configured()
    for problem in map(domain.train_problem, range(300)):
        assert re.fullmatch(r"\d{1,2} [+-] \d{1,2} =", problem.messages[0]["content"])
    assert (
        configured(task_options={"min_terms": 3, "max_terms": 3})
        .train_problem(0)
        .data["metadata"]["num_terms"]
        == 3
    )


def test_difficulty_is_the_sum_of_the_librarys_own_metadata():
    domain = ReasoningGym("chain_sum", difficulty_keys=["num_terms", "num_digits"])
    for index in range(50):
        metadata = domain.train_problem(index).data["metadata"]
        assert domain.difficulty(index) == metadata["num_terms"] + metadata["num_digits"]
    assert len({domain.difficulty(index) for index in range(50)}) > 4
    with pytest.raises(ValueError, match="domain gcd has no difficulty labels"):
        ReasoningGym("gcd").difficulty(0)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"task": "chain_sums"}, "unknown reasoning-gym task: 'chain_sums'; did you mean chain_sum, "),
        ({"task": "gcd", "task_options": {"min_nubers": 2}}, "'min_nubers'; did you mean min_numbers, "),
        ({"task": "gcd", "task_options": {"seed": 2}}, "unknown option of reasoning-gym task gcd: 'seed'"),
        ({"task": "gcd", "task_options": {"min_numbers": 1}}, "min_numbers must be at least 2"),
        ({"task": "gcd", "system_prompt": "simpel"}, "'simpel'; did you mean simple"),
        ({"task": "chain_sum", "difficulty_keys": ["num_term"]}, "'num_term'; did you mean num_terms"),
        ({"task": "chain_sum", "difficulty_keys": ["expression"]}, "there are num_digits, num_terms"),
    ],
)
def test_a_wrong_name_or_option_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError) as refusal:
        ReasoningGym(**arguments)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_task_with_too_few_questions_to_hold_some_out_is_refused():
    domain = ReasoningGym("count_bits", {"min_n": 5, "max_n": 5})
    with pytest.raises(ValueError, match="too few questions"):
        domain.train_problem(0)
        domain.heldout_problem(0)


@pytest.mark.parametrize(("tasks", "reused"), [(PARSE_EXPR, False), (JSON, True)])
def test_a_worker_that_reads_a_formula_judges_no_other_text(tasks, reused):
    for task in tasks:
        assert ReasoningGym(task).verifiers[task]["_reused_"] is reused
