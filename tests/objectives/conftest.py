"""The fixture of TRL's own losses."""

from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def trl_trainers() -> ModuleType:
    from tests.objectives import trl_trainers

    return trl_trainers
