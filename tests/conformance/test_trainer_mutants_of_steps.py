"""The kit catches each trainer whose scores, gradients or updates are wrong.

Each is tried on the part that names its fault.
"""

from tests.conformance.broken_trainers import assert_caught, broken


@broken("T1", "T2", "T3")
def test_caught(name, kit_models):
    assert_caught(name, kit_models)
