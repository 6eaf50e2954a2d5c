"""Sizes as people read them."""

import pytest

from contracts.support.sizes import describe_bytes, describe_count


@pytest.mark.parametrize(("count", "says"), [
     (0, "0"), (99_999, "99,999"), (100_000, "0.1 M"), (887_296, "0.9 M"), (99_940_000, "99.9 M"),
     (99_960_000, "100 M"), (494_032_768, "494 M"), (999_960_000, "1.0 B"), (7_615_616_512, "7.6 B"),
     (1_500_000_000_000, "1.5 T"),
])  # fmt: skip
def test_counts(count, says):
    assert describe_count(count) == says


@pytest.mark.parametrize(("size", "says"), [
     (0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (3_549_184, "3.4 MiB"),
     (512 * 2**20, "512 MiB"), (1023.99 * 2**20, "1.0 GiB"), (72 * 2**30, "72.0 GiB"),
     (5 * 2**40, "5.0 TiB"), (-4 * 2**30, "-4.0 GiB"), (-120 * 2**30, "-120 GiB"),
])  # fmt: skip
def test_bytes(size, says):
    assert describe_bytes(size) == says
