"""The identity over groups finds each way in which it can be broken."""

from benchmarks.ledger import IN_FLIGHT, ledger
from contracts.records import Resumed, Settled, Started
from pipelinerl.streams.events import FRESH_RUN


def started(*groups: int) -> list[Started]:
    return [Started(group_id=group, rollouts=2, draw=group, problem=group) for group in groups]


def trained(version: int, *groups: int) -> Settled:
    return Settled(group_ids=list(groups), rollouts=2 * len(groups), version=version)


def resumed(version: int, **changes: list[int]) -> Resumed:
    fields = {name: getattr(FRESH_RUN, name) for name in FRESH_RUN.__struct_fields__}
    return Resumed(**fields | {"version": version} | changes)


def test_a_group_is_settled_once_or_in_flight():
    dropped = Settled(group_ids=[2], rollouts=2, reason="stale")
    outcomes, errors = ledger([*started(1, 2, 3), trained(1, 1), dropped])
    assert outcomes == {"trained": {1}, "stale": {2}, IN_FLIGHT: {3}}
    assert errors == []


def test_what_was_trained_above_a_resumption_is_undone_by_it():
    events = [*started(1, 2, 3), trained(1, 1), trained(2, 2), resumed(1, interrupted=[3]), trained(2, 2)]
    assert ledger(events) == ({"trained": {1, 2}, "interrupted": {3}}, [])


def test_each_break_of_the_identity_is_named():
    assert ledger([*started(1), trained(1, 1), trained(2, 1)]).errors == ["groups settled twice: [1]"]
    assert ledger([*started(1, 1)]).errors == ["groups started twice: [1]"]
    assert ledger([trained(1, 4)]).errors == ["groups settled and never started: [4]"]
