"""The output head lets CUDA multiply as TF32 where that loses nothing, and nowhere else."""

import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.threads import wait_until_it_waits_or_ends
from tests.trainer_adapters.test_output_head import CHUNK, inputs
from trainer_adapters.output_head import HeadScores
from trainer_adapters.tf32 import tf32_products

aten = torch.ops.aten
PRODUCTS = {aten.mm, aten.addmm, aten.addmm_}


def setting() -> str:
    return torch.backends.cuda.matmul.fp32_precision


class Settings(TorchDispatchMode):
    """Notes the setting at each matrix product, and at each other operation."""

    def __init__(self):
        super().__init__()
        self.of_products: set[str] = set()
        self.of_others: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        product = function.overloadpacket in PRODUCTS
        (self.of_products if product else self.of_others).add(setting())
        return function(*args, **(kwargs or {}))


@pytest.fixture(params=["none", "ieee", "tf32"])
def before(request):
    """The setting that the process has otherwise."""
    kept = setting()
    torch.backends.cuda.matmul.fp32_precision = request.param
    yield request.param
    torch.backends.cuda.matmul.fp32_precision = kept


def settings_of_learning(dtype: torch.dtype, in_float32: bool, bias: bool) -> tuple[Settings, Settings]:
    """Returns those of forward and of backward, with several chunks."""
    given = inputs(dtype, bias)
    with Settings() as forward:
        logprobs, _ = HeadScores.apply(*given, CHUNK, False, in_float32)
    loss = logprobs.sum()
    with Settings() as backward:
        loss.backward()
    return forward, backward


@pytest.mark.parametrize("bias", [False, True])
def test_products_of_bfloat16_values_in_float32_are_tf32(before, bias):
    for found in settings_of_learning(torch.bfloat16, in_float32=True, bias=bias):
        assert found.of_products == {"tf32"}
        assert before in found.of_others
    assert setting() == before


@pytest.mark.parametrize(
    ("dtype", "in_float32"), [(torch.float32, True), (torch.float32, False), (torch.bfloat16, False)]
)
def test_other_products_have_the_setting_of_the_process(before, dtype, in_float32):
    for found in settings_of_learning(dtype, in_float32, bias=False):
        assert found.of_products == {before}
    hidden, *rest = inputs(torch.bfloat16, bias=False)
    with Settings() as found:
        HeadScores.apply(hidden.detach().float(), *rest, CHUNK, False, True)  # of float32 states
    assert found.of_products == {before}


def test_a_thread_waits_until_another_has_restored_the_setting(before):
    found = []

    def multiply() -> None:
        with tf32_products(True):
            found.append(setting())

    thread = threading.Thread(target=multiply)
    with pytest.raises(ZeroDivisionError), tf32_products(True):  # an error restores it too
        thread.start()
        wait_until_it_waits_or_ends(thread)
        assert found == []
        raise ZeroDivisionError
    thread.join()
    assert found == ["tf32"]
    assert setting() == before
