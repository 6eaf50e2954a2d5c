"""The table in its file: sections by machine and commit, one row for each part."""

from benchmarks.gpu_check.outcomes import Outcome
from benchmarks.gpu_check.table import put

PASSED = Outcome("nccl", "pass", 12.4, ["one", "two | three"])
SKIPPED = Outcome("publication-nccl", "skipped", 0.2, ["one GPU"])


def test_a_part_replaces_its_row_alone_and_other_sections_stay():
    before = put("# On a GPU\n", "H100, commit abc", "torch 2.13.0", PASSED)
    both = put(before, "H200, commit abc", "torch 2.13.0", PASSED)
    assert both.startswith(before)
    more = put(
        put(both, "H100, commit abc", "torch 2.13.0", SKIPPED), "H100, commit abc", "torch 2.13.0", SKIPPED
    )
    assert more.replace("| `publication-nccl` | skipped | 0 | one GPU |\n", "") == both
    first, _, second = more.partition("### H200")
    assert first.count("publication-nccl") == 1
    assert "publication-nccl" not in second
