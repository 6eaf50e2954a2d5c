"""The kit catches each trainer whose weights, checkpoints, memory or periods are wrong.

Each is tried on the part that names its fault.
"""

from tests.conformance.broken_trainers import assert_caught, broken, verdict_on_its_part


@broken("T4", "T5", "T6", "T7", "T9", "T10")
def test_caught(name, kit_models, hanging_trainers):
    waiting = hanging_trainers.get(name)
    assert_caught(name, waiting.result() if waiting else verdict_on_its_part(name, kit_models))
