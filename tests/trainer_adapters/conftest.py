import pytest
import torch

from contracts.conformance.processes import PRELOAD
from tests.trainer_adapters.models import FAMILIES, make_model

# ZeRO imports Muon at its start, and Muon imports torch's compiler.
DEEPSPEED = ["deepspeed", "deepspeed.runtime.zero.muon.original_muon"]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Lets the fork server import DeepSpeed once for all ranks, if a test of DeepSpeed is selected."""
    if any("deepspeed" in item.nodeid for item in session.items):
        PRELOAD.extend(DEEPSPEED)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, str]:
    """Returns a checkpoint of each family, by name."""
    return {family: make_model(tmp_path_factory.mktemp(family), family) for family in FAMILIES}
