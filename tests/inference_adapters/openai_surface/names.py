"""Checks names of the model, and the server's description of itself."""

import json

import openai
import pytest
from openai.types import Model

from tests.inference_adapters.openai_surface.client import NAME, Surface, check


@check
def the_model_has_its_names(server: Surface) -> None:
    listed = server.client.models.list()
    names = [model.id for model in listed]
    assert names == [server.model, NAME]
    for name in names:
        one = server.client.models.with_raw_response.retrieve(name)
        assert Model.model_validate(json.loads(one.text)).id == name
        assert server.chat(model=name).model == name
        assert server.text(model=name).model == name
        assert {chunk.model for chunk in server.chat_stream(model=name)} == {name}
    with pytest.raises(openai.NotFoundError) as unknown:
        server.client.models.retrieve("no-such-model")
    assert unknown.value.param == "model"


@check
def health_and_version_are_told(server: Surface) -> None:
    with server.asked("/health", method="HEAD") as answer:
        assert answer.status == 200 and answer.read() == b""
    with server.asked("/version") as answer:
        assert json.load(answer)["version"] == server.contract["engine_version"]
