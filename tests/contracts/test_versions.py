"""How the inference contract grows: requests are strict, answers tolerant, defaults are not sent."""

import pytest
from pydantic import Field, ValidationError

from contracts.inference import ContractInfo, Health, Parameter, WeightUpdateRequest, WeightUpdateStatus

UPDATE = {
    "run": "r",
    "epoch": 1,
    "version": 0,
    "parameters": [Parameter(name="w", dtype="float32", shape=(2,))],
    "bucket_bytes": 8,
    "timeout_s": 700.0,
}
OF_VERSION_1 = {
    "contract": 1, "engine": "e", "engine_version": "1", "model": "m", "ranks": 1, "backends": ["gloo"],
    "nccl_version": None, "accepts_dtypes": ["float32"], "kv_cache": ["keep"], "capabilities": [],
    "run": None, "group": None, "weights": {"version": 0, "state": "live"},
    "process": {"resident_bytes": 1, "running": 0, "waiting": 0},
}  # fmt: skip


def test_a_request_goes_without_the_fields_that_have_their_default():
    class Newer(WeightUpdateRequest):
        added: list[str] = Field(default_factory=list)
        another: str = "what every older server does"

    sent = Newer(**UPDATE, kv_cache="recompute").wire()
    assert sent.keys() == {*UPDATE, "kv_cache"} and sent["version"] == 0
    assert Newer(**UPDATE, another="what only a newer one does").wire().keys() == {*UPDATE, "another"}


def test_a_request_with_an_unknown_field_is_refused():
    with pytest.raises(ValidationError, match="extra"):
        WeightUpdateRequest(**UPDATE, unknown=1)


def test_an_answer_is_read_whatever_else_it_holds():
    newer = OF_VERSION_1 | {
        "contract": 3,
        "capabilities": ["stream", "a capability of the future"],
        "backends": ["gloo", "another"],
        "kv_cache": ["keep", "another"],
        "weights": {"version": 1, "state": "a state of the future", "digest": "x"},
        "limits": {"max_n": 7, "max_future": 3},
        "vocabulary": "x",
    }
    info = ContractInfo.model_validate(newer)
    assert info.capabilities[1] == "a capability of the future" and info.limits.max_n == 7
    assert info.limits.max_sequences == 1024  # not stated: the contract's
    assert Health.model_validate({"status": "asleep", "since": 3}).status == "asleep"
    status = {"run": "r", "epoch": 1, "version": 1, "state": "waiting", "phases": []}
    assert WeightUpdateStatus.model_validate(status).state == "waiting"


@pytest.mark.parametrize("shape", [(-1,), (2**49,), (2**40, 2**40), (1,) * 17])
def test_a_shape_is_bounded(shape):
    with pytest.raises(ValidationError):
        Parameter(name="w", dtype="float32", shape=shape)
