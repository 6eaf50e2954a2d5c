"""The kit catches each server that breaks a guarantee of failures, cancellation and stores.

Each is tried on the part that names its fault.
"""

from tests.conformance.broken import assert_caught, broken


@broken("G7", "G11", "G12", "G13", "G14", "G15", "G16", "G17", "G18", "G19")
def test_caught(name, on_their_part):
    assert_caught(name, on_their_part[name])
