"""The kit catches each server that breaks a guarantee of answers, refusals and tokens.

Each is tried on the part that names its fault.
"""

from tests.conformance.broken import assert_caught, broken


@broken("G4", "G6", "G9", "G10")
def test_caught(name, on_their_part):
    assert_caught(name, on_their_part[name])
