"""Weights that are no numbers are found in every dtype, and large ones are not taken for them."""

import pytest
import torch

from inference_adapters.finite_weights import why_not_finite

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("values", [[float("nan")], [float("inf")], [float("inf"), float("-inf")]])
def test_what_is_not_finite_is_found_wherever_it_lies(dtype, values):
    spoilt = torch.ones(300, dtype=dtype)
    spoilt[250 : 250 + len(values)] = torch.tensor(values, dtype=dtype)
    found = why_not_finite({"sound": torch.ones(3, dtype=dtype), "spoilt": spoilt})
    assert found == "spoilt holds values that are not finite (NaN or infinite)"


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_values_may_have_an_infinite_sum(dtype):
    largest = torch.full((64,), torch.finfo(dtype).max, dtype=dtype)
    assert why_not_finite({"largest": largest, "none": torch.empty(0, 3, dtype=dtype)}) is None
