"""Sizes as people read them: parameters of a model, and bytes. Called wherever a text names one."""

COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
WRITTEN_OUT = 100_000  # counts below it


def describe_count(count: int) -> str:
    """Returns a count such as "7.6 B", "494 M" or "0.9 M"; a small one in digits, such as "12,345"."""
    if count < WRITTEN_OUT:
        return f"{count:,}"
    return _in_units(count, COUNTS)


def describe_bytes(size: float) -> str:
    """Returns a number of bytes such as "72.0 GiB", "512 MiB", "12 bytes" or, if some lack, "-4.0 GiB"."""
    if abs(size) < BYTES[-1][0]:
        return f"{size:.0f} bytes"
    return _in_units(size, BYTES)


def _in_units(amount: float, units: tuple[tuple[float, str], ...]) -> str:
    """Returns the amount in the largest unit of which it is one at least, or else in the smallest."""
    factor, unit = next((of for of in units if round(abs(amount) / of[0], 1) >= 1), units[-1])
    number = amount / factor
    return f"{number:.1f} {unit}" if round(abs(number), 1) < 100 else f"{number:.0f} {unit}"
