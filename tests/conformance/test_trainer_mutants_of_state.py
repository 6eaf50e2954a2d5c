"""The kit catches each trainer whose weights, checkpoints, memory or periods are wrong.

Each is tried on the part that names its fault.
"""

from tests.conformance.broken_trainers import assert_caught, broken


@broken("T4", "T5", "T6", "T7", "T8", "T9", "T10")
def test_caught(name, kit_models):
    assert_caught(name, kit_models)
