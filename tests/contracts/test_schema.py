"""The OpenAPI file is current and valid, and its schemas draw their bounds where servers do."""

import json

import jsonschema
import openapi_spec_validator
import pytest
from pydantic import ValidationError

from contracts.channel import ChannelUpdateRequest, InitWeightChannelRequest
from contracts.conformance.inference.wrong_fields import wrong_fields
from contracts.errors import ErrorCode
from contracts.inference import (
    AbortWeightUpdateRequest,
    CompletionRequest,
    InitProcessGroupRequest,
    ScoreRequest,
    WeightUpdateRequest,
)
from contracts.schema import FILE
from contracts.schema.openapi import openapi_text

OPENAPI = json.loads(FILE.read_text())
OF_RUN = {"run": "r", "epoch": 1}
WEIGHT = {"name": "w", "dtype": "float32", "shape": [2]}
PLACE = {
    "backend": "gloo",
    "master_address": "127.0.0.1",
    "master_port": 9,
    "rank_offset": 1,
    "world_size": 2,
}
KEYS = [{"id": "k", "ed25519": "0" * 64}]
VALID = {
    InitProcessGroupRequest: OF_RUN | PLACE | {"group_name": "g", "timeout_s": 700},
    WeightUpdateRequest: OF_RUN
    | {"version": 1, "parameters": [WEIGHT], "tied": {"v": "w"}, "bucket_bytes": 8, "timeout_s": 700},
    InitWeightChannelRequest: OF_RUN
    | {"kind": "relay", "sources": ["http://127.0.0.1:9/"], "public_keys": KEYS},
    ChannelUpdateRequest: OF_RUN | {"version": 1, "manifest_sha256": "0" * 64, "timeout_s": 700},
    AbortWeightUpdateRequest: OF_RUN | {"version": 1},
    ScoreRequest: {"sequences": [[1, 2]], "temperature": 1.0},
    CompletionRequest: {
        "model": "scripted", "prompt": [1], "max_tokens": 3, "temperature": 1.0, "stop_token_ids": [1],
    },
}  # fmt: skip


def check(name: str, body: object) -> None:
    schema = OPENAPI | {"$ref": f"#/components/schemas/{name}"}
    jsonschema.Draft202012Validator(schema).validate(body)


def test_the_file_is_current():
    assert FILE.read_text() == openapi_text(), "run python -m contracts.schema --write"


def test_it_is_valid():
    openapi_spec_validator.validate(OPENAPI)
    for schema in OPENAPI["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_requests_are_closed_and_answers_open():
    for name, schema in OPENAPI["components"]["schemas"].items():
        request = name.endswith("Request") or name in ("Parameter", "PublicKey", "StreamOptions")
        assert schema.get("additionalProperties", True) is not request, name


def test_every_code_is_told():
    text = json.dumps(OPENAPI["paths"])
    assert [error.code for error in ErrorCode if error.code not in text] == []


@pytest.mark.parametrize("model", VALID)
def test_a_schema_draws_the_bounds_where_the_server_does(model):
    """Each field is wrong in each way that the kit derives, of which servers refuse all."""
    check(model.__name__, VALID[model])
    tried = set()
    for wrong in wrong_fields(model, VALID[model]):
        with pytest.raises(jsonschema.ValidationError):
            check(model.__name__, wrong.body)
        tried.add(wrong.field)
    assert tried >= VALID[model].keys()


@pytest.mark.parametrize(("model", "changes"), [
     (InitProcessGroupRequest, {"run": "ü"}), (WeightUpdateRequest, {"kv_cache": "burn"}),
     (InitWeightChannelRequest, {"run": "a/b"}), (InitWeightChannelRequest, {"kind": "swarm"}),
     (InitWeightChannelRequest, {"sources": ["ftp://127.0.0.1/"]}),
     (InitWeightChannelRequest, {"proof": "../proof"}), (ChannelUpdateRequest, {"parameters": []}),
     (CompletionRequest, {"temperature": 1e-5}),
])  # fmt: skip
def test_so_it_does_for_texts_and_what_lies_between_bounds(model, changes):
    with pytest.raises(ValidationError):
        model.model_validate(VALID[model] | changes)
    with pytest.raises(jsonschema.ValidationError):
        check(model.__name__, VALID[model] | changes)
