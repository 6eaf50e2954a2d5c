"""Prevents Python's garbage collector from taking longer than the parsing of a large request body.

`serve` calls it before the server starts.
"""

import gc

YOUNG_OBJECTS = 100_000  # new containers that start a collection; Python's default is 700
YOUNGER_PASSES = 50  # collections of one generation before the next generation is collected


def spare_collector() -> None:
    """Excludes imported objects from garbage collection, and makes collections rarer.

    While a body with millions of lists is parsed, the collector would examine all objects repeatedly. The
    event loop would not respond for many seconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNGER_PASSES, YOUNGER_PASSES)
