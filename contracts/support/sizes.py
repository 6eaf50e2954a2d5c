"""Formats numbers of parameters and bytes for messages."""

COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
WRITTEN_OUT = 100_000  # smaller counts are written with all digits


def describe_count(count: int) -> str:
    """Returns a count such as "7.6 B", "494 M", "0.9 M" or, below 100,000, "12,345"."""
    if count < WRITTEN_OUT:
        return f"{count:,}"
    return _in_units(count, COUNTS)


def describe_bytes(size: float) -> str:
    """Returns a size such as "72.0 GiB", "512 MiB", "12 bytes" or, for a deficit, "-4.0 GiB"."""
    if abs(size) < BYTES[-1][0]:
        return f"{size:.0f} bytes"
    return _in_units(size, BYTES)


def _in_units(amount: float, units: tuple[tuple[float, str], ...]) -> str:
    factor, unit = next((of for of in units if round(abs(amount) / of[0], 1) >= 1), units[-1])
    number = amount / factor
    return f"{number:.1f} {unit}" if round(abs(number), 1) < 100 else f"{number:.0f} {unit}"
