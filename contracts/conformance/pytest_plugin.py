"""Both kits as pytest fixtures, for the tests of an adapter in a repository of its own:

    pytest_plugins = ["contracts.conformance.pytest_plugin"]  # in the top-level conftest.py

    def test_my_server(inference_conformance):
        inference_conformance(["http://127.0.0.1:8000"], model="path/to/model")

    def test_my_trainer(trainer_conformance):
        trainer_conformance("my_package.MyTrainer", ranks=2)

A guarantee that does not hold fails the test with the table and how to reproduce it.
"""

from collections.abc import Callable, Sequence

import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.table import as_text, kept
from contracts.conformance.trainer.kit import check_trainer
from contracts.conformance.verdicts import Verdict


@pytest.fixture
def inference_conformance() -> Callable[..., list[Verdict]]:
    """`(urls, model, **options)`, the options of `check_inference`: `only`, `token`, `updates`, ..."""

    def check(urls: Sequence[str], model: str, **options: object) -> list[Verdict]:
        command = f"python -m contracts.conformance inference --url {' --url '.join(urls)} --model {model}"
        return _held("inference contract", check_inference(urls, model, **options), command)

    return check


@pytest.fixture
def trainer_conformance() -> Callable[..., list[Verdict]]:
    """`(adapter, **options)`, the options of `check_trainer`: `ranks`, `only`, `options`, `model`, ..."""

    def check(adapter: str, **options: object) -> list[Verdict]:
        command = f"python -m contracts.conformance trainer --adapter {adapter}"
        return _held("trainer contract", check_trainer(adapter, **options), command)

    return check


def _held(title: str, verdicts: list[Verdict], command: str) -> list[Verdict]:
    if not kept(verdicts):
        pytest.fail(as_text(title, verdicts, command), pytrace=False)
    return verdicts
