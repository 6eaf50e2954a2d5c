"""Token fields: what can be declared, what is refused in one line, and what a batch makes of them."""

import msgspec
import numpy as np
import pytest
import torch
from pydantic import ValidationError

from contracts.records import MicroBatchRow, TrainingSequence, decode, encode
from contracts.token_fields import TokenField, TokenFieldError, check_token_fields
from contracts.trainer import PackedBatch
from tests.builders import completion, rollout

FILLS = {"float32": -0.5, "int32": -7, "bool": True, "uint8": 255, "uint16": 65535}
DECLARED = {f"my_{dtype}": TokenField(dtype=dtype, fill=fill) for dtype, fill in FILLS.items()}
CONFIDENCE = {"confidence": TokenField(dtype="float32", fill=0.0)}


def arrays(tokens: int) -> dict[str, np.ndarray]:
    return {name: np.full(tokens, field.fill, field.array_dtype) for name, field in DECLARED.items()}


def sequence(tokens: int, **changes) -> TrainingSequence:
    values = {
        "rollout_id": "r", "group_id": 0, "temperature": 1.0, "loss_weight": 1.0,
        "token_ids": np.arange(tokens, dtype=np.int32), "loss_mask": np.ones(tokens, dtype=bool),
        "behaviour_logprobs": np.zeros(tokens, dtype=np.float32),
        "versions": np.zeros(tokens, dtype=np.int32), "advantages": np.zeros(tokens, dtype=np.float32),
    }  # fmt: skip
    return TrainingSequence(**values | changes)


@pytest.mark.parametrize(("dtype", "fill"), [
     ("float64", 0.0), ("float32", "0"), ("float32", True), ("float32", float("nan")), ("float32", 1e39),
     ("float32", None), ("int32", 0.0), ("int32", 2**31), ("int32", False), ("bool", 0), ("uint8", -1),
     ("uint8", 256), ("uint16", 65536),
])  # fmt: skip
def test_a_declaration_whose_fill_does_not_fit_its_dtype_is_refused(dtype, fill):
    with pytest.raises(ValidationError):
        TokenField(dtype=dtype, fill=fill)


def test_a_declaration_is_read_back_as_it_was():
    for field in (*DECLARED.values(), TokenField(dtype="float32", fill=1)):
        assert TokenField.model_validate_json(field.model_dump_json()) == field


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "is a NoneType, not a dict"),
        ({}, "confidence is declared and missing"),
        ({"confidence": [0.5] * 3}, "is a list, not a NumPy array: give np.array(values, dtype='float32')"),
        ({"confidence": torch.zeros(3)}, "is a Tensor, not a NumPy array"),
        (
            {"confidence": np.ma.masked_invalid(np.float32([0, np.nan, 1]))},
            "is a MaskedArray, not a NumPy array",
        ),
        ({"confidence": np.zeros(3)}, "has dtype float64, and float32 is declared: give confidence.astype("),
        ({"confidence": np.zeros(3, dtype=">f4")}, "has dtype >f4"),
        ({"confidence": np.zeros(4, dtype=np.float32)}, "has shape (4,) for 3 tokens"),
        ({"confidence": np.zeros((3, 1), dtype=np.float32)}, "has shape (3, 1) for 3 tokens"),
        ({"confidence": np.array([0, np.nan, 1], dtype=np.float32)}, "a value that is not finite"),
        (
            {"confidence": np.zeros(3, dtype=np.float32), "other": [1]},
            "other is not declared: add token_fields.o",
        ),
    ],
)
def test_what_is_not_as_declared_is_refused_in_one_line(given, says):
    with pytest.raises(TokenFieldError) as refusal:
        check_token_fields(CONFIDENCE, given, tokens=3)
    assert says in str(refusal.value) and len(str(refusal.value).splitlines()) == 1


def test_arrays_of_every_dtype_travel_in_records():
    before = rollout(0, completions=[completion([1], [2, 3], token_fields=arrays(2))])
    row = MicroBatchRow(
        step=0, index=0, micro_batches=[[sequence(2, token_fields=arrays(2))]], closes_step=True
    )
    (of_rollout,) = decode(encode(before)).completions
    (of_row,) = decode(encode(row)).micro_batches[0]
    for found in (of_rollout.token_fields, of_row.token_fields):
        assert found.keys() == DECLARED.keys()
        check_token_fields(DECLARED, found, tokens=2)
        assert all(np.array_equal(found[name], array) for name, array in arrays(2).items())


def test_a_record_from_before_there_were_token_fields_is_read():
    (one,) = decode(encode(rollout(0))).completions
    old = msgspec.msgpack.decode(encode(rollout(0)))
    for of_completion in old["completions"]:
        assert of_completion.pop("token_fields") == {}
    (found,) = decode(msgspec.msgpack.encode(old)).completions
    assert found.token_fields == one.token_fields == {}


def test_a_batch_has_the_arrays_of_its_sequences_end_to_end():
    first, second = (sequence(n, token_fields=arrays(n)) for n in (2, 3))
    first.token_fields["my_int32"][:] = [4, 5]
    second.token_fields["my_bool"][1] = False
    fields = PackedBatch.pack([first, second], token_fields=DECLARED).token_fields
    assert fields["my_int32"].tolist() == [4, 5, -7, -7, -7]
    assert fields["my_bool"].tolist() == [True, True, True, False, True]
    assert fields["my_float32"].tolist() == [-0.5] * 5
    assert {name: tensor.dtype for name, tensor in fields.items()} == {
        name: getattr(torch, field.dtype) for name, field in DECLARED.items()
    }


def test_an_empty_batch_has_them_too():
    full = PackedBatch.pack([sequence(2, token_fields=arrays(2))], token_fields=DECLARED).token_fields
    empty = PackedBatch.pack([], token_fields=DECLARED).token_fields
    assert [*empty] == [*full]
    assert all(tensor.shape == (0,) and tensor.dtype == full[name].dtype for name, tensor in empty.items())


def test_a_batch_moves_with_all_that_it_has():
    batch = PackedBatch.pack([sequence(2, token_fields=arrays(2))], step=5, token_fields=DECLARED)
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in moved.token_fields.values()} == {"meta"}
    assert [*moved.token_fields] == [*DECLARED] and moved.token_ids.device.type == "meta"
    assert (moved.step, moved.num_rollouts) == (5, 1)


def test_a_batch_of_sequences_with_others_is_refused():
    with pytest.raises(TokenFieldError, match="my_bool is declared and missing"):
        PackedBatch.pack([sequence(2)], token_fields={"my_bool": DECLARED["my_bool"]})
    with pytest.raises(TokenFieldError, match="my_float32 is not declared"):
        PackedBatch.pack([sequence(2, token_fields=arrays(2))])


def test_an_objective_that_asks_for_another_is_told_which_there_are():
    batch = PackedBatch.pack([], token_fields=CONFIDENCE)
    with pytest.raises(KeyError, match=r"token_fields.novelty is not declared: .*\(declared: confidence\)"):
        batch.token_fields["novelty"]
