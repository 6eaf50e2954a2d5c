"""Makes requests with one wrong field from the JSON Schema of a wire model. G6 calls it.

Must not know routes or error codes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from contracts.wire import Request

NEW_FIELD = "no_such_field"
MANY = 5000  # largest bound that is exceeded, unless thorough
WRONG_VALUES: dict[str, list[Any]] = {  # type -> values that no reader accepts as that type
    "integer": ["x", {}, 1.5],
    "number": ["x", {}],
    "string": [7, {}, ["x"]],
    "boolean": ["perhaps", 7, {}],
    "array": [7, {}, "x"],
    "object": [7, ["x"], "x"],
}


@dataclass(frozen=True)
class WrongField:
    """A body with one wrong field."""

    body: dict[str, Any]
    field: str  # name; for an item of a list, followed by the item's field
    how: str  # missing, null, type, unknown or bound


def wrong_fields(model: type[Request], valid: dict[str, Any], thorough: bool = False) -> Iterator[WrongField]:
    """Yields copies of the valid body `valid`, with each field wrong in each way."""
    schema = model.model_json_schema()
    for wrong in _of_object(schema, schema.get("$defs", {}), valid, thorough):
        if not _accepted(model, wrong.body):  # a wrong value for one type of a field may be valid as another
            yield wrong


def _accepted(model: type[Request], body: dict[str, Any]) -> bool:
    try:
        model.model_validate(body)
    except ValueError:
        return False
    return True


def _of_object(
    schema: dict[str, Any], definitions: dict[str, Any], valid: dict[str, Any], thorough: bool
) -> Iterator[WrongField]:
    yield WrongField(valid | {NEW_FIELD: 1}, NEW_FIELD, "unknown")
    for name, field in schema["properties"].items():
        if name in schema.get("required", []):
            yield WrongField({k: v for k, v in valid.items() if k != name}, name, "missing")
        options = [_resolved(option, definitions) for option in field.get("anyOf", [field])]
        for how, value in _wrong_values(options, valid.get(name), thorough):
            yield WrongField(valid | {name: value}, name, how)
        for option in options:
            for within, how, value in _wrong_items(option, definitions, valid.get(name), thorough):
                yield WrongField(valid | {name: value}, f"{name}.{within}" if within else name, how)


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    reference = str(schema.get("$ref", ""))
    found: dict[str, Any] = definitions[reference.rpartition("/")[2]] if reference else schema
    return found


def _wrong_values(
    options: list[dict[str, Any]], valid: object, thorough: bool
) -> Iterator[tuple[str, object]]:
    """Yields (how, value) for values that none of the `options` allows."""
    types = {str(option.get("type")) for option in options}
    if "null" not in types:
        yield "null", None
    taken = types | ({"integer"} if "number" in types else set())
    wrong = [value for kind in types - {"null"} for value in WRONG_VALUES.get(kind, [])]
    for value in wrong:
        if not _types_of(value) & taken:
            yield "type", value
    if len(types - {"null"}) == 1:  # a value beyond the bounds of one type may be valid as another
        for option in options:
            for value in _beyond(option, valid, thorough):
                yield "bound", value


def _types_of(value: object) -> set[str]:
    kinds: dict[type, set[str]] = {
        str: {"string"},
        dict: {"object"},
        list: {"array"},
        float: {"number"},
        int: {"integer", "number"},
    }
    return kinds[type(value)]


def _beyond(option: dict[str, Any], valid: object, thorough: bool) -> Iterator[object]:
    """Yields values just beyond each bound that a schema states."""
    if "minimum" in option:
        yield option["minimum"] - 1
    if "maximum" in option:
        yield option["maximum"] + 1
    for bound in ("exclusiveMinimum", "exclusiveMaximum"):
        if bound in option:
            yield option[bound]
    if "maxLength" in option and (thorough or option["maxLength"] <= MANY):
        yield "x" * (option["maxLength"] + 1)
    if "pattern" in option:
        yield from ("", "a\nb", "\u00e9")
    if option.get("minItems"):
        yield []
    most = option.get("maxItems")
    if most is not None and (thorough or most <= MANY) and isinstance(valid, list) and valid:
        yield valid[-1:] * (most + 1)


def _wrong_items(
    option: dict[str, Any], definitions: dict[str, Any], valid: object, thorough: bool
) -> Iterator[tuple[str, str, object]]:
    """Yields (item's field, how, value) for lists and objects with one wrong item."""
    if isinstance(valid, list) and valid and "items" in option:
        item = _resolved(option["items"], definitions)
        if "properties" in item:
            for wrong in _of_object(item, definitions, valid[-1], thorough):
                yield wrong.field, wrong.how, [*valid[:-1], wrong.body]
        else:
            for how, value in _wrong_values([item], valid[-1], thorough):
                yield "", how, [*valid, value]
    if isinstance(valid, dict) and valid and isinstance(option.get("additionalProperties"), dict):
        name = next(iter(valid))
        for how, value in _wrong_values([option["additionalProperties"]], valid[name], thorough):
            yield "", how, valid | {name: value}
