"""The inference contract for programs in any language: an OpenAPI file with a JSON Schema for each body.

`python -m contracts.schema --write` generates the file from the models, in this directory.
"""

from contracts.schema.openapi import FILE, openapi

__all__ = ["FILE", "openapi"]
