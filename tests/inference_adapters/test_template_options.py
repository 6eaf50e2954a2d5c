"""Options of the chat template: their names and values, and what each kind of server makes of them."""

from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from contracts.errors import ContractError
from contracts.inference import ChatCompletionRequest
from extensions.demo.tokenizer import byte_tokenizer
from inference_adapters.request_checks import check_options
from inference_adapters.tokenizer_mixin import TokenizerMixin
from inference_adapters.vllm.request_checks import checked_chat

BODY = {"model": "m", "messages": [{"role": "user", "content": "2"}]}
MANY = {f"option_{i}": i for i in range(65)}
VLLM = SimpleNamespace(
    max_context=lambda: 64, info=lambda: SimpleNamespace(capabilities=["template_options"])
)


def asked(options: object) -> dict:
    return BODY | {"chat_template_kwargs": options}


WRONG = [{"a": value} for value in (None, [1], {}, "x" * 1025, float("nan"))]


@pytest.mark.parametrize("options", [*WRONG, {"": 1}, {"a" * 65: 1}, MANY, ["a"], 7])
def test_values_of_another_kind_are_refused(options):
    with pytest.raises(ValidationError, match="chat_template_kwargs"):
        ChatCompletionRequest.model_validate(asked(options))
    with pytest.raises(ContractError, match="chat_template_kwargs"):
        checked_chat(asked(options), VLLM)


def test_values_stay_what_they_are():
    given = {"a": True, "b": 1, "c": 1.0, "d": "1", "e" * 64: "x" * 1024}
    read = ChatCompletionRequest.model_validate(asked(given)).chat_template_kwargs
    assert [(name, type(value)) for name, value in read.items()] == [(k, type(v)) for k, v in given.items()]
    assert checked_chat(asked(given), VLLM)["chat_template_kwargs"] == given


@pytest.mark.parametrize(
    "name",
    ["messages", "conversation", "tools", "tokenize", "eos_token", "image_token", "return_dict", "self"],
)
def test_what_rendering_sets_is_no_option(name):
    body = asked({"loud": True, name: True})
    for check in (
        lambda: check_options(ChatCompletionRequest.model_validate(body)),
        lambda: checked_chat(body, VLLM),
    ):
        with pytest.raises(ContractError, match=f"chat_template_kwargs: {name} is set by the rendering"):
            check()


def test_vllm_refuses_options_where_it_renders_without_a_template():
    without = SimpleNamespace(max_context=lambda: 64, info=lambda: SimpleNamespace(capabilities=[]))
    with pytest.raises(ContractError, match="chat_template_kwargs: this server does not declare"):
        checked_chat(asked({"loud": True}), without)


def test_the_template_reads_the_options():
    engine = TokenizerMixin()
    engine._tokenizer = byte_tokenizer(64)
    engine._tokenizer.chat_template = "{{ messages[0].content }}{{ '!' if loud }}"
    text = {
        loud: engine.decode(engine.encode_chat(BODY["messages"], None, {"loud": loud}))
        for loud in (False, True)
    }
    assert text == {False: "2", True: "2!"}
    assert engine.decode(engine.encode_chat(BODY["messages"], None)) == "2"
