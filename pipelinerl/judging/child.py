"""Runs a judging service outside of a run, for commands and tests."""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import yaml

from contracts.support.die_with_parent import die_with_parent
from pipelinerl.errors import PlanError
from pipelinerl.judging.client import SOCKET_VARIABLE, JudgingClient
from pipelinerl.judging.isolation import clean_environment
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.paths import importable

RESTART_S = 1.0  # wait before a restart of the service


class JudgingEndedError(PlanError):
    """The service ended before it was ready. The message is the last line of its log."""


@asynccontextmanager
async def judging_service(options: JudgingConfig) -> AsyncIterator[JudgingClient]:
    """Yields a client of a service that runs, and is restarted, for the block. Raises JudgingEndedError."""
    with tempfile.TemporaryDirectory(prefix="pipelinerl-") as directory:
        run_dir = Path(directory)
        (run_dir / "config.yaml").write_text(yaml.safe_dump({"judging": options.model_dump()}))
        client = JudgingClient(run_dir / "socket" / "judging", options)
        running = asyncio.create_task(_kept_running(run_dir))
        connecting = asyncio.create_task(client.connect())
        try:
            await asyncio.wait({running, connecting}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
            yield client
        finally:
            connecting.cancel()
            running.cancel()
            await client.close()
            await asyncio.gather(running, connecting, return_exceptions=True)


async def _kept_running(run_dir: Path) -> None:
    """Restarts the service whenever it ends. Raises JudgingEndedError if it ends before it was ever ready."""
    socket = run_dir / "socket" / "judging"
    log = run_dir / "log"
    while True:
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *service_command(run_dir),
                env=service_environment(socket),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent,
            )
        try:
            await process.wait()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        text = log.read_text(errors="replace")
        if "are ready" not in text:
            raise JudgingEndedError((text.strip().splitlines() or ["it said nothing"])[-1])
        await asyncio.sleep(RESTART_S)


def service_command(run_dir: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "pipelinerl.judging", "--run-dir", str(run_dir))


def service_environment(socket: Path) -> dict[str, str]:
    """Returns the environment of the service, which inherits only a few variables."""
    return clean_environment(
        {"PYTHONPATH": importable(), "PYTHONUNBUFFERED": "1", SOCKET_VARIABLE: str(socket)}
    )
