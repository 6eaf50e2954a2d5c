"""Islands that do not fit the others, and options that no island can have."""

import pytest
import torch

from contracts.trainer import WorkerSpec
from extensions.islands.diloco import DiLoCoTrainer
from extensions.islands.flat import Flat
from extensions.islands.members import IslandRefusedError, Member, can_exchange, diverged, refusal
from tests.extensions.islands.fleet import Fleet, fleet_of
from tests.extensions.islands.test_rounds import same_everywhere
from tests.extensions.islands.workers import OPTIMIZER, Opaque, TinyWorker


def outcomes(fleet: Fleet) -> dict[str, object]:
    """Makes a round. Returns the measures of each island, or the error that ended it."""

    def train(name: str) -> object:
        try:
            return fleet._train(name, 4)
        except IslandRefusedError as error:
            return str(error)

    return fleet.each(train)


@pytest.mark.parametrize("options", [{"outer_lr": 0.5}, {"quantise": "none"}, {"outer_momentum": 0.5}])
def test_a_newcomer_with_other_terms_ends_and_the_others_make_the_round(options):
    fleet = fleet_of("a", "b")
    fleet.run()
    fleet.add("c", **options)
    found = outcomes(fleet)
    assert found["c"].startswith("the island c is refused: the other islands have other settings: every")
    assert found["a"]["outer_islands"] == found["b"]["outer_islands"] == 2
    same_everywhere(fleet, ("a", "b"))


MEMBER = Member("a", 4, 3, "lineage", "terms", newcomer=True, ready=True)


def member(**changes: object) -> Member:
    return Member(**vars(MEMBER) | changes)


def test_two_islands_of_one_name_do_not_fit_and_the_second_newcomer_ends():
    both = [member(), member()]
    assert not can_exchange(both)
    assert refusal(0, both) is None
    assert "another island with the name a: set trainer.island" in refusal(1, both)


def test_a_newcomer_with_the_name_of_an_island_that_has_made_rounds_ends_whatever_its_place():
    both = [member(), member(newcomer=False)]
    assert "another island with the name a" in refusal(0, both)
    assert refusal(1, both) is None


def test_members_fit_if_those_that_are_ready_are_alike():
    others = [member(), member(island="b")]
    assert can_exchange(others)
    for change in ({"terms": "other"}, {"lineage": "other"}, {"island": "a"}):
        assert not can_exchange([*others, member(**{"island": "c"} | change)])
        assert can_exchange([*others, member(**{"island": "c", "ready": False} | change)])
    assert not can_exchange([member(ready=False)])


def test_who_is_not_ready_does_not_stray_and_decides_nothing():
    behind = {"ready": False, "lineage": "old", "newcomer": False}
    members = [member(), member(island="b", **behind), member(island="c", **behind)]
    assert not any(diverged(own, members) for own in range(3))
    members[1] = member(island="b", lineage="other")
    assert [diverged(own, members) for own in range(3)] == [False, True, False]


def test_no_island_that_has_made_rounds_ends_for_newcomers():
    members = [member(newcomer=False), member(island="b", terms="other"), member(island="c", terms="other")]
    assert refusal(0, members) is None
    assert "other settings" in refusal(1, members) and "other settings" in refusal(2, members)


def test_only_at_the_first_round_another_anchor_ends_a_newcomer():
    """Later it is behind or has diverged, and takes the others' anchor."""
    for number, ends in ((0, True), (3, False)):
        members = [member(round=number), member(island="b", round=number, lineage="other")]
        assert (refusal(1, members) is not None) == ends


def test_a_record_is_as_long_as_all_others_and_is_read_as_it_was():
    assert len(MEMBER.record()) == len(member(island="longer").record())
    assert Member.read(MEMBER.record()) == MEMBER
    with pytest.raises(ValueError, match="sent a record with other fields"):
        Member.read(b'{"island": "a", "updates": 3}')
    with pytest.raises(ValueError, match="name is too long"):
        member(island="x" * 500).record()


BAD = {
    "every": (0, 2.5, "ten", True),
    "outer_lr": (0, -1.0, float("nan"), float("inf"), "abc", True),
    "outer_momentum": (-0.1, 1.0, float("nan"), "x"),
    "quantise": ("int4", None),
    "attempts": (0, 1.5),
    "max_behind": (-1, 0.5),
    "keep": (0, "8"),
    "wait_s": (0, -1.0, 1e12, float("inf"), float("nan"), ".inf", None),
    "timeout_s": (0.0, "abc"),
    "address": (None, "", 4),
    "directory": (None, ""),
    "island": ("", "a/b", "..", "x" * 65, 3),
    "lighthouse": ("host:29510", 29510, "http://", "http://host", "http://host:99999", "https://host:1"),
    "inner": (None, "fsdp", DiLoCoTrainer(inner=TinyWorker())),
}


@pytest.mark.parametrize("name,value", [(name, value) for name, values in BAD.items() for value in values])
def test_an_option_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        DiLoCoTrainer(**{"inner": TinyWorker(), name: value})


def test_a_worker_that_must_be_alone_asks_no_lighthouse(tmp_path):
    trainer = DiLoCoTrainer(
        inner=TinyWorker(), every=1, lighthouse="http://192.0.2.1:1", directory=str(tmp_path / "rounds")
    )
    trainer.init_worker(WorkerSpec(model_path="", optimizer=OPTIMIZER, alone=True))
    assert trainer.step().measures["outer_islands"] == 1
    trainer.close()
    assert not (tmp_path / "rounds").exists()


@pytest.mark.parametrize("tensor", [torch.zeros(2, 3).T, torch.zeros(2, dtype=torch.bfloat16)])
def test_shards_that_cannot_be_written_in_place_are_refused(tensor):
    with pytest.raises(ValueError, match="contiguous float32"):
        Flat([tensor])


def test_an_inner_trainer_without_shards_is_refused_unless_there_are_no_rounds():
    spec = WorkerSpec(model_path="", optimizer=OPTIMIZER)
    with pytest.raises(ValueError, match="Opaque gives no access to its shards"):
        DiLoCoTrainer(inner=Opaque()).init_worker(spec)
    trainer = DiLoCoTrainer(inner=Opaque(), every=None)
    trainer.init_worker(spec)
    assert trainer.step().measures == {"inner": 1.0}
