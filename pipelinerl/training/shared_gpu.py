"""Lets the servers take their GPU memory first, and measures what a trainer rank has left.

Called before the rank loads its model, if `world.share_gpus` is true. An engine does not start if it finds
less memory than it was given. One that starts later may take what the rank has counted on.
"""

import asyncio
import logging
import time

import aiohttp

from contracts.errors import CannotContinueError
from contracts.model_shape import ModelShape
from contracts.support.sizes import describe_bytes
from contracts.trainer import TrainerWorker
from pipelinerl.batching.of_run import longest_rollout
from pipelinerl.clients.server_control import NO_ANSWER, ServerControl
from pipelinerl.config import RunConfig
from pipelinerl.streams.launched_servers import LaunchedServers

log = logging.getLogger(__name__)
POLL_S = 0.5


def wait_for_servers(launched: LaunchedServers, longest_s: float) -> None:
    """Returns when no server of the run is loading, or after `longest_s` seconds."""
    deadline = time.monotonic() + longest_s
    while (loading := _loading(launched)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if loading:
        log.warning("%s loads for %g s; this rank loads its model meanwhile", ", ".join(loading), longest_s)


def _loading(launched: LaunchedServers) -> list[str]:
    launched.refresh()
    return [joining.name for joining in launched.present if asyncio.run(_is_loading(joining.url))]


async def _is_loading(url: str) -> bool:
    """An unhealthy server has its memory: it may be waiting for the rank's weights."""
    async with aiohttp.ClientSession() as session:
        try:
            return await ServerControl(session, url).health_status() == "loading"
        except NO_ANSWER:
            return True


def check_free_memory(
    config: RunConfig, worker: TrainerWorker, shape: ModelShape | None, memory: tuple[int, int]
) -> None:
    """Raises CannotContinueError if a GPU has less memory free than the rank takes by its own estimate.

    memory: the GPU's free bytes, and all of them.
    """
    longest = longest_rollout(config) or config.sampling.max_prompt_tokens + config.sampling.max_tokens
    parts = shape and worker.memory(shape, config.world.trainer_ranks, longest)
    free, whole = map(describe_bytes, memory)
    if parts and config.takes_turns:  # the server sleeps before the rest is needed
        parts = {name: size for name, size in parts.items() if name in ("weights", "optimizer")}
    needed = sum(parts.values()) if parts else 0
    log.info("of this GPU's %s, %s are free; this rank needs about %s", whole, free, describe_bytes(needed))
    if needed > memory[0]:
        raise CannotContinueError(
            f"this rank needs about {describe_bytes(needed)} of its GPU, and {free} of {whole} are free: the "
            "server or another process (nvidia-smi) has the rest; see docs/one-gpu.md"
        )
