"""The kit catches each server that breaks a guarantee of weights, labels and endurance.

Each is tried on the part that names its fault.
"""

from tests.conformance.broken import assert_caught, broken


@broken("G1", "G2", "G3", "G5", "G8")
def test_caught(name, on_their_part):
    assert_caught(name, on_their_part[name])
