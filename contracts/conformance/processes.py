"""The fork server from which the kit starts its processes. It has already imported their modules."""

import multiprocessing
from multiprocessing.context import ForkServerContext

# Modules that the fork server imports when the first process is started.
PRELOAD = ["contracts.conformance.preload"]


def fork_server() -> ForkServerContext:
    """Returns the multiprocessing context whose processes come from the fork server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context
