"""Both kits as pytest fixtures, for the tests of an adapter in another repository.

    pytest_plugins = ["contracts.conformance.pytest_plugin"]  # in the top-level conftest.py

    def test_my_server(inference_conformance):
        inference_conformance(["http://127.0.0.1:8000"], model="path/to/model")

    def test_my_trainer(trainer_conformance):
        trainer_conformance("my_package.MyTrainer", ranks=2)

A test fails if a guarantee does not hold. Its message has the table and how to reproduce the failure.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.table import all_hold, as_text
from contracts.conformance.trainer.kit import check_trainer
from contracts.conformance.verdicts import Verdict


@pytest.fixture
def inference_conformance() -> Callable[..., list[Verdict]]:
    """Returns a function `(urls, model, **options)` with the options of `check_inference`, such as `only`."""

    def check(urls: Sequence[str], model: str, **options: Any) -> list[Verdict]:
        return _fail_unless_held("inference contract", check_inference(urls, model, **options))

    return check


@pytest.fixture
def trainer_conformance() -> Callable[..., list[Verdict]]:
    """Returns a function `(adapter, **options)` with the options of `check_trainer`, such as `ranks`."""

    def check(adapter: str, **options: Any) -> list[Verdict]:
        return _fail_unless_held("trainer contract", check_trainer(adapter, **options))

    return check


def _fail_unless_held(title: str, verdicts: list[Verdict]) -> list[Verdict]:
    if not all_hold(verdicts):
        pytest.fail(as_text(title, verdicts), pytrace=False)
    return verdicts
