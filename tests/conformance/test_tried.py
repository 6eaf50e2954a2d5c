"""docs/conformance.md tells the adapters that the kit is really tried on."""

from tests.conformance.tried import PAGE, written


def test_the_page_counts_what_is_there():
    assert PAGE.read_text() == written(), "run python -m tests.conformance.tried --write"
