"""docs/conformance.md tells the adapters that the kit is really tried on."""

from tests.conformance.tried import PAGE, words, written


def test_the_page_counts_what_is_there():
    assert PAGE.read_text() == written(), "run python -m tests.conformance.tried --write"


def test_a_name_is_told_in_words():
    assert words("KeepsThePrefixCache") == "keeps the prefix cache"
    assert words("answers_without_a_space") == "answers without a space"
