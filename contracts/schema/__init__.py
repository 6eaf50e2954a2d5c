"""The inference contract for programs in any language: an OpenAPI file, and a JSON Schema for each body.

They are written from the models by `python -m contracts.schema --write`, and lie beside this file.
"""

from contracts.schema.documents import DIRECTORY, documents

__all__ = ["DIRECTORY", "documents"]
