"""Serves a gateway that kills itself in an upload; test_killed starts it with directory and moment."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from extensions.volunteers.gateway.audit import Auditor
from extensions.volunteers.gateway.registry import Registry
from tests.extensions.volunteers.gateways import gateway

accept = Registry.accept


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def accept_and_die(*entry: object) -> None:
    accept(*entry)
    die()


async def serve(state: Path) -> None:
    async with gateway(state) as running:
        running.want()
        await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[2] == "in the audit":
        Auditor.audit = die
    else:
        Registry.accept = accept_and_die
    asyncio.run(serve(Path(sys.argv[1])))
