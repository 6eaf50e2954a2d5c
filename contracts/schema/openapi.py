"""Generates the OpenAPI file from the routes and their models."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema
from pydantic_core import core_schema

from contracts import CONTRACT_VERSION
from contracts.errors import ErrorCode
from contracts.schema.completions import Error
from contracts.schema.routes import ANY, ROUTES, Route
from contracts.wire import Answer, Request

FILE = Path(__file__).with_name("openapi.json")
REFERENCE = "#/components/schemas/{model}"
JSON = "application/json"


class _Schema(GenerateJsonSchema):
    """Generates JSON Schemas with all defaults. A response's field is required unless its default is null."""

    def field_is_required(
        self,
        field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField,
        total: bool,
    ) -> bool:
        schema: Any = field["schema"]
        if schema["type"] == "default":
            return self.mode == "serialization" and schema.get("default", ...) is not None
        return super().field_is_required(field, total)

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> dict[str, Any]:
        generated = super().default_schema(schema)
        if factory := schema.get("default_factory"):
            generated["default"] = cast(Callable[[], Any], factory)()
        return generated


def openapi_text() -> str:
    """Returns the OpenAPI document as the text of its file."""
    return json.dumps(openapi(), indent=2, ensure_ascii=False) + "\n"


def openapi() -> dict[str, Any]:
    """Returns the OpenAPI document."""
    _, schemas = models_json_schema(_models(), ref_template=REFERENCE, schema_generator=_Schema)
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "The inference contract", "version": str(CONTRACT_VERSION)},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _models() -> list[tuple[type[BaseModel], JsonSchemaMode]]:
    """Returns the models of all bodies with the mode of their schema."""
    requests = {route.request for route in ROUTES if route.request}
    requests |= {route.other_request for route in ROUTES if route.other_request}
    answers: set[type[Answer]] = {route.answer for route in ROUTES if route.answer} | {Error}
    answers |= {route.chunk for route in ROUTES if route.chunk}
    in_order: list[type[Request] | type[Answer]] = sorted(
        [*requests, *answers], key=lambda model: model.__name__
    )
    return [(model, "validation" if issubclass(model, Request) else "serialization") for model in in_order]


def _summary(route: Route) -> str:
    words = " or ".join(f"`{word}`" for word in route.capabilities)
    return f"{route.summary} (capability {words})" if words else route.summary


def _operation(route: Route) -> dict[str, Any]:
    answer: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if route.answer:
        answer = {JSON: _schema(route.answer)}
    if route.chunk:
        answer["text/event-stream"] = {
            "schema": {"type": "string"},
            "x-event": _schema(route.chunk)["schema"],
        }
        answer["application/x-ndjson"] = {"schema": {"type": "string"}, "x-line": answer[JSON]["schema"]}
    responses: dict[str, Any] = {str(route.status): {"description": _summary(route), "content": answer}}
    if route.path == "/health":
        responses["503"] = {"description": "loading or unhealthy", "content": answer}
    if route.method == "head":
        responses = {status: {"description": full["description"]} for status, full in responses.items()}
    for status, codes in _errors(route).items():
        content = {} if route.method == "head" else {"content": {JSON: _schema(Error)}}
        responses.setdefault(status, {"description": ", ".join(codes)} | content)
    operation: dict[str, Any] = {"summary": _summary(route), "responses": responses}
    if route.path == "/health":
        operation["security"] = []
    if route.parameters:
        operation["parameters"] = route.parameters
    if route.request:
        body = _schema(route.request)
        if route.other_request:
            body = {"schema": {"oneOf": [body["schema"], _schema(route.other_request)["schema"]]}}
        operation["requestBody"] = {"required": True, "content": {JSON: body}}
    return operation


def _errors(route: Route) -> dict[str, list[str]]:
    """Returns the error codes of a route by status. Those of status 422 may also have 400 below /v1/."""
    found: dict[str, list[str]] = {}
    for error in sorted({*ANY, *route.errors}, key=lambda code: list(ErrorCode).index(code)):
        statuses = {400, 422} if error.http_status == 422 and "/v1/" in route.path else {error.http_status}
        for status in sorted(statuses):
            found.setdefault(str(status), []).append(error.code)
    return dict(sorted(found.items()))


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return {"schema": {"$ref": REFERENCE.format(model=model.__name__)}}
