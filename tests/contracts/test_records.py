import pickle

import msgspec
import numpy as np
import pytest

from contracts.records import (
    CheckpointSaved,
    Dated,
    DropReason,
    Evaluated,
    Failure,
    PhaseBegan,
    ReferenceCondemned,
    Restarted,
    Resumed,
    SaveWanted,
    ServerCondemned,
    ServerJoined,
    ServerLeft,
    Settled,
    Started,
    StepClosed,
    WeightsPublished,
    decode,
    encode,
    encode_into,
)
from tests.builders import completion, rollout


def test_a_rollout_comes_back_as_it_was():
    before = rollout(3, reward=0.5, reward_components={"correct": 0.5}, status="truncated")
    after = decode(encode(before))
    assert msgspec.structs.asdict(after).keys() == msgspec.structs.asdict(before).keys()
    assert (after.group_id, after.reward, after.reward_components, after.status) == (
        before.group_id, before.reward, before.reward_components, before.status,
    )  # fmt: skip
    (one,), (other,) = before.completions, after.completions
    assert one.spans == other.spans
    for name in ("prompt_token_ids", "token_ids", "logprobs"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).dtype == getattr(other, name).dtype


def test_per_token_data_takes_four_bytes_a_token():
    short, long = (len(encode(rollout(0, completions=[completion([], [7] * n)]))) for n in (1000, 2000))
    assert 8000 <= long - short <= 8010  # token ids and log-probabilities


def test_a_record_is_encoded_into_memory_that_held_a_longer_one():
    buffer = bytearray(b"head" + bytes(10_000))
    encode_into(buffer, 4, rollout(0))
    assert buffer == b"head" + encode(rollout(0))


def test_reasons_travel_by_name():
    settled = Settled(group_ids=[1], rollouts=2, reason=DropReason.STALE)
    assert b"stale" in encode(settled) and decode(encode(settled)) == settled


def test_an_evaluation_from_before_there_were_sets_is_read():
    numbers = {"version": 3, "problems": 5, "success": 0.2, "first_version": 3, "last_version": 4}
    evaluated = decode(msgspec.msgpack.encode({"record": "Evaluated", "schema": 1, **numbers}))
    assert (evaluated.last_version, evaluated.failed, evaluated.pinned, evaluated.sets) == (4, 0, False, [])


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", pickle.dumps({"record": "Rollout"}), msgspec.msgpack.encode({"record": "Nonsense"})],
)
def test_anything_else_is_refused(data):
    with pytest.raises(msgspec.MsgspecError):
        decode(data)


def test_an_array_of_another_dtype_is_refused_when_written():
    with pytest.raises(KeyError):
        encode(rollout(0, completions=[completion([], [1], logprobs=np.zeros(1))]))


def test_versions_of_a_rollout():
    assert rollout(
        0, completions=[completion([1], [2], version=4), completion([1], [2], version=2)]
    ).versions == [2, 4]


def test_a_failure_is_the_infrastructures_or_it_is_not():
    assert {kind for kind in Failure if not kind.is_infrastructure} == {Failure.TOO_LONG, Failure.DOMAIN}
    assert not rollout(0).failed_by_infrastructure


@pytest.mark.parametrize(
    ("kind", "reasons"),
    [
        (Failure.SERVER, "server_connection server_unhealthy server_abort server_500"),
        (Failure.TIMEOUT, "timeout"),
        (Failure.BAD_ANSWER, "bad_answer"),
        (Failure.JUDGE, "judge"),
        (Failure.TOO_LONG, "server_context_length_exceeded server_too_large"),
        (Failure.DOMAIN, "bad_reward bad_token_fields VerifierBroke"),
    ],
)
def test_the_kind_of_a_failure_that_was_recorded_by_its_status(kind, reasons):
    assert {rollout(0, status=f"failed:{reason}").failure for reason in reasons.split()} == {kind}


def test_success_of_a_rollout_that_was_recorded_among_its_metrics():
    assert decode(encode(rollout(0, metrics={"success": 1.0}))).success == 1.0
    assert rollout(0).success is None


def test_events_of_earlier_code_have_no_time():
    data = {"record": "Settled", "schema": 1, "group_ids": [1], "rollouts": 2}
    assert decode(msgspec.msgpack.encode(data)).at == 0.0
    dated = {Started, Settled, StepClosed, WeightsPublished, Evaluated, CheckpointSaved, Resumed, PhaseBegan}
    dated |= {ServerJoined, ServerLeft, ServerCondemned, ReferenceCondemned, SaveWanted, Restarted}
    assert {*Dated.__subclasses__()} == dated
