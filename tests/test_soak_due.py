"""Which parts of `make soak` are due."""

from tests.soak_due import by_age

LOG = """\
| part | what it runs |
| `soak-c` | a row of another table |

| date | commit | seed | part | tests |
| 2026-01-01 | 1 | 0 | soak-a | 1 passed |
| 2026-01-02 | 2 | 0 | soak-b | 1 passed |
| 2026-01-03 | 3 | 0 | soak-a | 1 passed |
"""


def test_parts_without_a_line_come_first_and_the_newest_last():
    assert by_age(["soak-a", "soak-b", "soak-c"], LOG) == ["soak-c", "soak-b", "soak-a"]
