"""Writes the actor's metrics regularly, also while no weights are published."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

EVERY_S = 10.0
log = logging.getLogger(__name__)


@asynccontextmanager
async def pulsing(write: Callable[[], None], every_s: float = EVERY_S) -> AsyncIterator[None]:
    """Calls `write` every `every_s` seconds while the block runs."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                write()
            except OSError as error:
                log.warning("metrics are left out: %s", error)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
