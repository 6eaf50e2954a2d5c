"""A choice takes what an engine samples, and refuses a log-probability that is no number."""

import pytest

from contracts.errors import ContractError, ErrorCode
from contracts.inference import TokenDelta
from inference_adapters.choices import Choice


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), float("-inf")])
def test_a_log_probability_that_is_no_number_fails_the_request(logprob):
    choice = Choice()
    choice.extend(TokenDelta([3], [-0.5], [0]))
    with pytest.raises(ContractError) as raised:
        choice.extend(TokenDelta([4, 5], [-0.5, logprob], [0, 0]))
    assert raised.value.code is ErrorCode.ENGINE_FAILED
    assert choice.token_ids == [3]
