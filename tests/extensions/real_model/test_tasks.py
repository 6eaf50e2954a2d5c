"""The two tasks: what is right, and what is held out."""

import json

import pytest

from extensions.real_model.sums import PlainSums
from extensions.real_model.verifiers import JsonObject, LastNumber
from pipelinerl.components import build_domain
from pipelinerl.launcher.composing.compose import compose_config

CARD = {"name": "Anna", "age": 24, "city": "Rome"}
WRITTEN = json.dumps(CARD)


@pytest.mark.parametrize(
    ("answer", "outcome", "numbers"),
    [
        ("33", "right", 1),
        ("24 + 9 = 33.", "right", 3),
        ("33, or 33.0", "right", 2),
        ("42-9=33", "right", 3),
        ("-33", "wrong", 1),
        ("1,033", "wrong", 1),
        ("33 34", "wrong", 2),
        ("3.33", "wrong", 1),
        ("9" * 10_000, "wrong", 1),
        ("thirty-three", "no_answer", 0),
    ],
)
def test_the_last_number_counts_and_guesses_are_seen(answer, outcome, numbers):
    judgement = LastNumber().judge("33", answer)
    assert (judgement.outcome, judgement.metrics["numbers"]) == (outcome, numbers)
    assert judgement.metrics["exact"] == (answer == "33")


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (WRITTEN, "right"),
        (f"\n```json\n{json.dumps(CARD, indent=2)}\n```", "right"),
        (WRITTEN.replace("24", '"24"'), "wrong"),
        (WRITTEN.replace("24", "24.0"), "wrong"),
        (WRITTEN.replace("}", ', "job": "baker"}'), "wrong"),
        ("[1]", "no_answer"),
        (f"{WRITTEN} Is that right?", "no_answer"),
        ("[" * 5000, "no_answer"),
    ],
    ids=lambda value: value[:20],
)
def test_an_answer_is_the_object_and_nothing_else(text, outcome):
    verifier = JsonObject()
    assert verifier.judge(CARD, verifier.answer_in(text)).outcome == outcome


@pytest.mark.parametrize(("recipe", "least"), [("smollm2", 200), ("smollm2_hard", 500)])
def test_recipes_hold_out_distinct_problems_that_no_seed_trains_on(recipe, least):
    (held_out, trained), other = (ids(f"+exp={recipe}", f"seed={seed}") for seed in (0, 1))
    assert other == (held_out, trained)
    assert len(held_out) >= least and not held_out & trained


def ids(*settings: str) -> tuple[set[str], set[str]]:
    """Returns the ids of the held-out and of the training problems of a run."""
    domain = build_domain(compose_config([*settings]))
    held_out = {domain.heldout_problem(index).problem_id for index in range(domain.heldout_size)}
    trained = {domain.train_problem(index).problem_id for index in range(domain.train_size)}
    assert (len(held_out), len(trained)) == (domain.heldout_size, domain.train_size)
    return held_out, trained


def test_names_of_held_out_cards_are_in_no_training_problem():
    domain = build_domain(compose_config(["+exp=smollm2_hard"]))
    held_out = {domain.heldout_problem(index).data["name"] for index in range(domain.heldout_size)}
    trained = {domain.train_problem(index).data["name"] for index in range(domain.train_size)}
    assert held_out and not held_out & trained


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("domain.heldout_size=100000", "heldout_size=100000: set 1 to "),
        ("domain.heldout_size=9.5", "heldout_size=9.5 is no whole number"),
        ("domain.names=[Anna]", "heldout_size=500: set 1 to 0, the number of sentences"),
        ("domain.names=Anna", "names is no list of words, such as"),
        ("domain.cities=[1,2]", "cities is no list of words, such as"),
    ],
)
def test_too_few_sentences_are_refused(setting, message):
    with pytest.raises(Exception, match=message):
        build_domain(compose_config(["+exp=smollm2_hard", setting]))


def test_sums_that_leave_nothing_to_train_on_are_refused():
    with pytest.raises(ValueError, match="largest=9, heldout_size=81: some of 81 sums must be held out"):
        PlainSums(largest=9, heldout_size=81)
