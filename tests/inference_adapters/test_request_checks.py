"""Which sampling parameters an engine without capabilities takes; the scripted one has most of them."""

import pytest

from contracts.errors import ContractError, ErrorCode
from contracts.inference import ChatCompletionRequest
from inference_adapters.request_checks import check_capabilities

ASKING = [
    ({"top_p": 0.9}, "truncation"), ({"top_k": 1}, "truncation"), ({"seed": 0}, "seed"),
    ({"stop": "."}, "stop_strings"), ({"stop": ["."]}, "stop_strings"), ({"tools": [{}]}, "tools"),
    ({"stream": True}, "stream"), ({"arrays": True, "logprobs": True}, "arrays"),
    ({"as_completed": True}, "as_completed"),
    ({"chat_template_kwargs": {"loud": False}}, "template_options"),
]  # fmt: skip
NEUTRAL = [{}, {"top_p": 1}, {"top_k": 0}, {"top_k": -1}, {"top_k": None}, {"stop": []}, {"tools": []},
           {"chat_template_kwargs": {}}]  # fmt: skip


def request(**changes) -> ChatCompletionRequest:
    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "p"}], **changes)


@pytest.mark.parametrize(("changes", "capability"), ASKING)
def test_what_needs_a_capability_is_refused_without_it(changes: dict, capability: str):
    with pytest.raises(ContractError, match=next(iter(changes))) as refused:
        check_capabilities(request(**changes), [])
    assert refused.value.code is ErrorCode.UNSUPPORTED_PARAMETER
    check_capabilities(request(**changes), [capability])


@pytest.mark.parametrize("changes", NEUTRAL)
def test_neutral_values_need_no_capability(changes: dict):
    check_capabilities(request(**changes), [])
