"""Where the kit's own processes come from: one fork server, which has imported what they need."""

import multiprocessing
from multiprocessing.context import ForkServerContext

# Modules that the fork server imports when it is started, by the first process that is.
PRELOAD = ["contracts.conformance.preload"]


def fork_server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context
