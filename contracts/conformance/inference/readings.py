"""The figures of what a server holds, and the growth between two readings of them. `growth` compares them."""

MIB = 2**20
TOLD = "resident memory, as /contract tells it"
RESIDENT = "resident memory of its processes"
ANSWER = "bytes of the answer to GET /contract"
TAKES = "milliseconds that one takes"
NAMES = {"resident_bytes": RESIDENT, "descriptors": "file descriptors"}  # of a footprint's fields
COUNTED = ("file descriptors", "threads", "processes")

Reading = dict[str, int]  # by the name of the figure
Readings = dict[str, Reading]  # by the server's address


def differences(before: list[Readings], after: list[Readings]) -> Readings:
    return {url: _difference([r[url] for r in before], [r[url] for r in after]) for url in before[0]}


def _difference(before: list[Reading], after: list[Reading]) -> Reading:
    """Returns the least reading after less the least before, of each figure that every reading has.

    Each end is the least of a few, because what is held only during an event is no leak.
    """
    names = [name for name in before[0] if all(name in reading for reading in before + after)]
    return {name: min(r[name] for r in after) - min(r[name] for r in before) for name in names}


def amount(name: str, value: int) -> str:
    return f"{value / MIB:.1f} MiB" if name in (TOLD, RESIDENT) else str(value)
