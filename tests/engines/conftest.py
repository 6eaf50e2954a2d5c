"""The model that all real engines serve, which calls the calculator."""

import pytest
from filelock import FileLock

from tests.engines.tool_rollouts import DOMAIN
from tests.tool_model import make_tool_model


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    """Returns the directory of the model. The first process that asks for it makes it for all."""
    shared = tmp_path_factory.getbasetemp().parent / "tool-model"
    with FileLock(f"{shared}.lock"):
        if not shared.exists():
            make_tool_model(shared, DOMAIN)
    return str(shared)
