"""The OpenAPI file and the JSON Schemas are current, valid, and draw their bounds where servers do."""

import json

import jsonschema
import openapi_spec_validator
import pytest
from pydantic import ValidationError

from contracts.channel import ChannelUpdateRequest, InitWeightChannelRequest
from contracts.errors import ErrorCode
from contracts.inference import CompletionRequest, InitProcessGroupRequest, WeightUpdateRequest
from contracts.schema.documents import DIRECTORY, documents, text_of

OPENAPI = json.loads((DIRECTORY / "openapi.json").read_text())
JOIN = {
    "run": "r",
    "epoch": 1,
    "group_name": "g",
    "backend": "gloo",
    "master_address": "127.0.0.1",
    "master_port": 9,
    "rank_offset": 1,
    "world_size": 2,
    "timeout_s": 0.1,
}
UPDATE = {
    "run": "r",
    "epoch": 1,
    "version": 1,
    "parameters": [{"name": "w", "dtype": "float32", "shape": [2]}],
    "bucket_bytes": 8,
    "timeout_s": 1,
}
CHANNEL = {
    "run": "r",
    "epoch": 1,
    "kind": "relay",
    "sources": ["http://127.0.0.1:9/"],
    "public_keys": [{"id": "k", "ed25519": "0" * 64}],
}
STORED = {"run": "r", "epoch": 1, "version": 1, "manifest_sha256": "0" * 64, "timeout_s": 1}
TEXT = {"model": "scripted", "prompt": "1 + 1 =", "max_tokens": 3, "temperature": 1.0}


def schema_of(name: str) -> dict:
    return json.loads((DIRECTORY / f"{name}.json").read_text())


def check(name: str, body: object) -> None:
    jsonschema.Draft202012Validator(schema_of(name)).validate(body)


def test_the_files_are_current():
    wanted = {name: text_of(document) for name, document in documents().items()}
    found = {path.name: path.read_text() for path in DIRECTORY.glob("*.json")}
    assert found == wanted, "run python -m contracts.schema --write"


def test_they_are_valid():
    openapi_spec_validator.validate(OPENAPI)
    for path in DIRECTORY.glob("*.json"):
        if path.name != "openapi.json":
            jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))


def test_requests_are_closed_and_answers_open():
    for name, schema in OPENAPI["components"]["schemas"].items():
        request = name.endswith("Request") or name in ("Parameter", "PublicKey", "StreamOptions")
        assert schema.get("additionalProperties", True) is not request, name


def test_every_code_is_told():
    text = json.dumps(OPENAPI["paths"])
    assert [error.code for error in ErrorCode if error.code not in text] == []


@pytest.mark.parametrize(
    ("model", "good", "changes"),
    [
        (InitProcessGroupRequest, JOIN, {"rank_offset": 0}),
        (InitProcessGroupRequest, JOIN, {"world_size": 1}),
        (InitProcessGroupRequest, JOIN, {"world_size": 2**16 + 1}),
        (InitProcessGroupRequest, JOIN, {"run": "ü"}),
        (InitProcessGroupRequest, JOIN, {"timeout_s": 86400}),
        (InitProcessGroupRequest, JOIN, {"more": 1}),
        (WeightUpdateRequest, UPDATE, {"version": 2**53}),
        (WeightUpdateRequest, UPDATE, {"bucket_bytes": 0}),
        (WeightUpdateRequest, UPDATE, {"parameters": []}),
        (WeightUpdateRequest, UPDATE, {"parameters": [{"name": "w", "dtype": "float32", "shape": [-1]}]}),
        (WeightUpdateRequest, UPDATE, {"kv_cache": "burn"}),
        (InitWeightChannelRequest, CHANNEL, {"run": "a/b"}),
        (InitWeightChannelRequest, CHANNEL, {"kind": "swarm"}),
        (InitWeightChannelRequest, CHANNEL, {"sources": []}),
        (InitWeightChannelRequest, CHANNEL, {"sources": ["ftp://127.0.0.1/"]}),
        (InitWeightChannelRequest, CHANNEL, {"public_keys": [{"id": "k", "ed25519": "0"}]}),
        (InitWeightChannelRequest, CHANNEL, {"proof": "../proof"}),
        (ChannelUpdateRequest, STORED, {"manifest_sha256": "G" * 64}),
        (ChannelUpdateRequest, STORED, {"parameters": []}),
        (CompletionRequest, TEXT, {"temperature": 1e-5}),
        (CompletionRequest, TEXT, {"temperature": 20000}),
        (CompletionRequest, TEXT, {"n": 129}),
        (CompletionRequest, TEXT, {"seed": 2**63}),
        (CompletionRequest, TEXT, {"top_p": 0}),
        (CompletionRequest, TEXT, {"stop_token_ids": [2**31]}),
    ],
)
def test_a_schema_draws_the_bounds_where_the_server_does(model, good, changes):
    model.model_validate(good)
    check(model.__name__, good)
    with pytest.raises(ValidationError):
        model.model_validate(good | changes)
    with pytest.raises(jsonschema.ValidationError):
        check(model.__name__, good | changes)
