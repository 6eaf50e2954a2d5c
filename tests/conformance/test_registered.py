"""What installed packages add to the kit of servers."""

import pytest

from contracts.conformance.inference.kit import CHECKS, OWN
from contracts.conformance.inference.registered import Registered, check_covered, registered, with_registered
from contracts.conformance.verdicts import Guarantee

G1 = Guarantee("G1", "content")


def test_guarantees_come_after_the_kits_own_and_parts_in_their_place():
    other = Registered((), {Guarantee("G99", "mine"): {"mine": print}}, {("G1", "b"): {"between": print}})
    checks = with_registered({G1: {"a": print, "b": print}}, [other])
    assert {guarantee.code: list(parts) for guarantee, parts in checks.items()} == {
        "G1": ["a", "between", "b"],
        "G99": ["mine"],
    }


def test_this_project_registers_what_is_about_stores():
    assert [g.code for g in CHECKS if g not in OWN] == ["G12", "G13", "G14", "G15", "G16"]
    (endurance,) = [parts for guarantee, parts in CHECKS.items() if guarantee.code == "G8"]
    assert list(endurance) == ["updates", "arrivals", "requests", "channels", "groups"]


def test_channels_that_nothing_proves_are_refused():
    check_covered(["stream", "relay", "shared"], registered())
    check_covered(["stream"], [])
    with pytest.raises(ValueError, match="declare relay and shared, and no installed package"):
        check_covered(["relay", "shared"], [])
