"""The inference contract for programs in any language: an OpenAPI file, and a JSON Schema for each body.

`python -m contracts.schema --write` generates them from the models, in this directory.
"""

from contracts.schema.documents import DIRECTORY, documents

__all__ = ["DIRECTORY", "documents"]
