from functools import partial

import pytest

from extensions.math.verifier.verifier import last_boxed
from tests.counts import lines_run


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {x^{2^{3}}} done }", "x^{2^{3}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \} b}", r"a \} b"),
        (r"\boxed{7} and then \boxed{8", "7"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"\boxed{ }", None),
        (r"\boxed 5", None),
        ("no box", None),
        ("", None),
    ],
)
def test_the_last_box_that_is_closed(text, answer):
    assert last_boxed(text) == answer


def test_what_never_closes_costs_no_more_than_its_length():
    opened = "\\boxed{"
    few, many = (lines_run(partial(last_boxed, opened * count)) for count in (100, 1000))
    assert last_boxed(opened * 30_000 + "{" * 100_000) is None
    assert many < 11 * few
