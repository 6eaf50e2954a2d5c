"""What holds for each: seeds, state, refusals, and that its config file builds it."""

import json
import random
from functools import partial
from pathlib import Path

import pytest

from contracts.records import SamplerState, decode, encode
from pipelinerl.components import build_domain, build_sampler
from pipelinerl.domains.base import Domain
from pipelinerl.domains.mixture import Mixture
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.samplers.assigned import Assigned
from pipelinerl.samplers.base import Sampler
from pipelinerl.samplers.curriculum import Curriculum
from pipelinerl.samplers.difficulty_pools import DifficultyPools
from pipelinerl.samplers.mixed import Mixed
from pipelinerl.samplers.prioritised import Prioritised
from pipelinerl.samplers.retiring import Retiring
from pipelinerl.samplers.shuffled_epochs import ShuffledEpochs
from tests.counts import lines_run
from tests.samplers.domains import Labelled

MIXTURE = Mixture({"small": Labelled(7), "large": Labelled(43)})

CURRICULUM = partial(Curriculum, start_share=0.2, ramp_draws=150)
PRIORITISED = partial(Prioritised, rate=0.3, floor=0.05)
POOLS = partial(
    DifficultyPools, hard_up_to=0.25, normal_up_to=0.75, weights={"easy": 0.2, "normal": 1.0, "hard": 0.2}
)
RETIRING = partial(Retiring, sampler=ShuffledEpochs, success=0.9)
MIXED = partial(Mixed, sampler=ShuffledEpochs, weights={"small": 3}, adapt=True, rate=0.2, floor=0.1)

SAMPLERS = {
    "shuffled_epochs": ShuffledEpochs,
    "curriculum": CURRICULUM,
    "prioritised": PRIORITISED,
    "difficulty_pools": POOLS,
    "assigned": partial(Assigned, node="a"),
    "retiring": RETIRING,
    "retiring of pools": partial(RETIRING, sampler=POOLS),
    "mixed": MIXED,
    "mixed of curricula": partial(MIXED, sampler=CURRICULUM),
    "mixed of prioritised": partial(MIXED, sampler=PRIORITISED),
    "mixed of pools": partial(MIXED, sampler=POOLS),
    "mixed of assigned": partial(MIXED, sampler=partial(Assigned, node="a")),
}
every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def make(name: str, seed: int = 0, domain: Domain = MIXTURE) -> Sampler:
    return SAMPLERS[name](domain=domain, seed=seed)


def live(sampler: Sampler, draws: int, chance: random.Random) -> list[int]:
    """Draw as a run does: weights move on, groups end late and out of order, with any success."""
    drawn, open_groups = [], []
    for draw in range(draws):
        drawn.append(sampler.next(version=draw // 20))
        open_groups.append(drawn[-1])
        if len(open_groups) > 5:
            sampler.observe(open_groups.pop(chance.randrange(5)), chance.randrange(9) / 8)
    return drawn


@every_sampler
@pytest.mark.parametrize("before", [0, 1, 130, 400])
def test_a_restored_sampler_continues_as_the_original_would(name, before):
    original = make(name)
    live(original, before, random.Random(before))
    saved = encode(SamplerState(draws=before, state=original.state_dict()))
    restored = make(name)
    live(restored, 33, random.Random("another history"))
    restored.load_state_dict(decode(saved).state)
    assert live(restored, 200, random.Random(1)) == live(original, 200, random.Random(1))
    assert encode(SamplerState(draws=0, state=restored.state_dict())) == encode(
        SamplerState(draws=0, state=original.state_dict())
    )


@every_sampler
def test_a_saved_state_is_of_its_moment(name):
    sampler = make(name)
    live(sampler, 50, random.Random(0))
    state = sampler.state_dict()
    assert json.loads(json.dumps(state)) == state  # plain values, and keys that are strings
    saved = encode(SamplerState(draws=50, state=state))
    live(sampler, 50, random.Random(0))
    assert encode(SamplerState(draws=50, state=state)) == saved


@every_sampler
def test_the_seed_decides_the_order(name):
    one, same, other = (live(make(name, seed), 60, random.Random(0)) for seed in (3, 3, 4))
    assert one == same != other


@every_sampler
def test_every_problem_comes_and_none_beyond(name):
    drawn = live(make(name), 3000, random.Random(0))
    assert set(drawn) == set(range(50))


@every_sampler
def test_a_draw_looks_at_no_problem_one_by_one(name):
    """A loop over the problems, at each draw, would be 50,000,000 lines."""
    sampler = make(name, domain=Mixture({"small": Labelled(7), "large": Labelled(100_000)}))
    live(sampler, 10, random.Random(0))  # the first draw may look at all of them
    assert lines_run(lambda: live(sampler, 500, random.Random(1))) < 100_000


@every_sampler
def test_a_domain_of_one_problem(name):
    sampler = SAMPLERS[name](domain=Mixture({"small": Labelled(1)}), seed=0)
    assert live(sampler, 30, random.Random(0)) == [0] * 30


@every_sampler
def test_a_domain_without_problems_is_refused(name):
    with pytest.raises(ValueError, match="at least one"):
        SAMPLERS[name](domain=Labelled(0, name="small"), seed=0)


WRONG = [
    (CURRICULUM, {"start_share": 0}, "start_share is 0; it is above 0 and at most 1"),
    (CURRICULUM, {"start_share": 1.5}, "start_share is 1.5"),
    (CURRICULUM, {"ramp_draws": 0}, "ramp_draws is 0"),
    (PRIORITISED, {"rate": 0}, "rate is 0"),
    (PRIORITISED, {"floor": 0}, "floor is 0"),
    (PRIORITISED, {"floor": float("nan")}, "floor is nan"),
    (POOLS, {"hard_up_to": 0.8}, "hard_up_to=0.8 normal_up_to=0.75"),
    (POOLS, {"weights": {"easy": 1, "normal": 1}}, "easy, normal and hard each have one above 0"),
    (POOLS, {"weights": {"easy": 0, "normal": 1, "hard": 1}}, "each have one above 0"),
    (RETIRING, {"success": 0}, "success is 0; it is above 0 and at most 1"),
    (RETIRING, {"success": 1.1}, "success is 1.1"),
    (Assigned, {"node": ""}, "node is ''"),
    (Assigned, {"node": 7}, "node is 7"),
    (MIXED, {"weights": {"smal": 1}}, "weights name smal; the domain's parts are small, large"),
    (MIXED, {"weights": {"small": -1}}, "none is below 0"),
    (MIXED, {"weights": {"small": 0, "large": 0}}, "one at least above"),
    (MIXED, {"rate": 2}, "rate is 2"),
    (MIXED, {"floor": 0}, "floor is 0"),
]


@pytest.mark.parametrize(("sampler", "options", "says"), WRONG)
def test_a_wrong_option_is_refused_in_one_line(sampler, options, says):
    with pytest.raises(ValueError) as refusal:
        sampler(domain=MIXTURE, seed=0, **options)
    assert says in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("file", sorted(Path("conf/sampler").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_config_file_builds_it(file):
    overrides = ["domain.train_size=20", "+domain.difficulty_keys=[num_digits]"]
    config = compose_config([f"sampler={file.stem}", *overrides])
    sampler = build_sampler(config, build_domain(config))
    assert {sampler.next(version=0) for _ in range(300)} <= {*range(20)}


def test_the_config_of_a_mixture_with_a_sampler_in_each_part():
    config = compose_config(
        [
            "domain=mixture",
            "domain.domains.sums.train_size=30",
            "domain.domains.gcds.train_size=40",
            "sampler=mixed",
            "sampler.adapt=true",
            "+sampler.weights.sums=2",
            "sampler@sampler.sampler=prioritised",
            "sampler.sampler.rate=1",
        ]
    )
    domain = build_domain(config)
    sampler = build_sampler(config, domain)
    assert domain.parts == {"sums": range(30), "gcds": range(30, 70)}
    drawn = [domain.train_problem(sampler.next(version=0)).domain for _ in range(600)]
    assert 340 < drawn.count("sums") < 460


@pytest.mark.parametrize("size", [3, 7])
def test_an_order_is_not_continued_with_more_or_fewer_problems(size):
    begun = ShuffledEpochs(Labelled(5), 0)
    for _ in range(4):
        begun.next(0)
    with pytest.raises(ValueError, match=f"order is of 5 training problems, and the domain has {size}"):
        ShuffledEpochs(Labelled(size), 0).load_state_dict(begun.state_dict())
