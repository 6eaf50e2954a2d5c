"""The OpenAPI file is current and valid, and its schemas draw their bounds where servers do."""

import json
from pathlib import Path

import jsonschema
import openapi_spec_validator
import pytest
from pydantic import ValidationError

from contracts.channel import ChannelUpdateRequest, InitWeightChannelRequest
from contracts.conformance.inference.wrong_fields import wrong_fields
from contracts.errors import ErrorCode
from contracts.inference import CompletionRequest, InitProcessGroupRequest, WeightUpdateRequest
from contracts.schema import FILE
from contracts.schema.openapi import openapi_text
from contracts.schema.routes import ROUTES
from tests.contracts.valid_requests import VALID

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS / "inference-contract.md", *sorted(DOCS.glob("contract-*.md"))]  # the core and its capabilities
OPENAPI = json.loads(FILE.read_text())
REQUESTS = {model for route in ROUTES for model in (route.request, route.other_request) if model}


def check(name: str, body: object) -> None:
    schema = OPENAPI | {"$ref": f"#/components/schemas/{name}"}
    jsonschema.Draft202012Validator(schema).validate(body)


def test_the_file_is_current():
    assert FILE.read_text() == openapi_text(), "run python -m contracts.schema --write"


def test_it_is_valid():
    openapi_spec_validator.validate(OPENAPI)
    for schema in OPENAPI["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_page_describes_each_route(route):
    assert any(f"{route.method.upper()} {route.path}" in page.read_text() for page in PAGES)


def test_requests_are_closed_and_answers_open():
    for name, schema in OPENAPI["components"]["schemas"].items():
        request = name.endswith("Request") or name in ("Parameter", "PublicKey", "StreamOptions")
        assert schema.get("additionalProperties", True) is not request, name


def test_every_code_is_told():
    text = json.dumps(OPENAPI["paths"])
    assert [error.code for error in ErrorCode if error.code not in text] == []


@pytest.mark.parametrize("model", sorted(REQUESTS, key=lambda model: model.__name__))
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
