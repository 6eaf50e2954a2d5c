"""Keeps Python's garbage collector from taking longer over a request's body than reading it takes.

It is called by `serve` before the server starts.
"""

import gc

YOUNG_OBJECTS = 100_000  # new containers after which the collector looks at them; Python's own number is 700
YOUNGER_PASSES = 50  # of one generation, before the next one is looked at


def spare_collector() -> None:
    """Leaves what is imported out of the garbage collector's passes, and makes them rarer.

    While a body with millions of lists is read, the collector would look at every object again and again.
    The event loop would answer nobody for many seconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNGER_PASSES, YOUNGER_PASSES)
