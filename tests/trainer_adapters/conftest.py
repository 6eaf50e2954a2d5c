import pytest
import torch

from tests.trainer_adapters.models import FAMILIES, make_model


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, str]:
    """A checkpoint of each family, by name."""
    return {family: make_model(tmp_path_factory.mktemp(family), family) for family in FAMILIES}
