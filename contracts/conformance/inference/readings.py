"""Readings of a server's resources, and their growth. `growth` uses them."""

MIB = 2**20
REPORTED = "resident memory, as /contract tells it"
RESIDENT = "resident memory of its processes"
ANSWER = "bytes of the answer to GET /contract"
TAKES = "milliseconds that one takes"
NAMES = {"resident_bytes": RESIDENT, "descriptors": "file descriptors"}  # names of the fields of Footprint
COUNTED = ("file descriptors", "threads", "processes")

Reading = dict[str, int]  # figure -> value
Readings = dict[str, Reading]  # server's URL -> reading


def differences(before: list[Readings], after: list[Readings]) -> Readings:
    return {url: _difference([r[url] for r in before], [r[url] for r in after]) for url in before[0]}


def _difference(before: list[Reading], after: list[Reading]) -> Reading:
    """Returns the increase of the minimum from `before` to `after`, of each figure that every reading has.

    The minimum of several readings excludes resources that are in use only during an event.
    """
    names = [name for name in before[0] if all(name in reading for reading in before + after)]
    return {name: min(r[name] for r in after) - min(r[name] for r in before) for name in names}


def amount(name: str, value: int) -> str:
    return f"{value / MIB:.1f} MiB" if name in (REPORTED, RESIDENT) else str(value)
