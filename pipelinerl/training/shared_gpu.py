"""Lets the server on a trainer rank's GPU take its memory first, and measures what is left.

Called before the rank loads its model, if `world.share_gpus` is true. An engine does not start if it finds
less memory than it was given. One that starts later may take what the rank has counted on.
"""

import asyncio
import logging
import time

import aiohttp

from contracts.errors import CannotContinueError
from contracts.support.sizes import describe_bytes
from contracts.trainer import TrainerWorker
from pipelinerl.batching.of_run import longest_rollout
from pipelinerl.clients.server_control import NO_ANSWER, ServerControl
from pipelinerl.config import RunConfig
from pipelinerl.streams.launched_servers import LaunchedServers

log = logging.getLogger(__name__)
POLL_S = 0.5


def wait_for_server(launched: LaunchedServers, name: str, longest_s: float) -> None:
    """Returns when the server of this name is ready, or after `longest_s` seconds."""
    deadline = time.monotonic() + longest_s
    while time.monotonic() < deadline:
        launched.refresh()
        urls = [joining.url for joining in launched.present if joining.name == name]
        if urls and asyncio.run(_is_ready(urls[0])):
            return
        time.sleep(POLL_S)
    log.warning("%s was not ready in %g s; this rank loads its model all the same", name, longest_s)


async def _is_ready(url: str) -> bool:
    async with aiohttp.ClientSession() as session:
        try:
            return await ServerControl(session, url).health_status() == "ready"
        except NO_ANSWER:
            return False


def check_room(config: RunConfig, worker: TrainerWorker, free: int) -> None:
    """Raises CannotContinueError if `free`, the GPU's free bytes, are fewer than the rank's own estimate."""
    shape = config.model.shape
    longest = longest_rollout(config) or config.sampling.max_prompt_tokens + config.sampling.max_tokens
    parts = shape and worker.memory(shape, config.world.trainer_ranks, longest)
    if not parts:
        log.info("the server has left %s of this GPU", describe_bytes(free))
        return
    needed = sum(parts.values())
    log.info("the server has left %s of this GPU; about %s are needed", *map(describe_bytes, (free, needed)))
    if needed > free:
        raise CannotContinueError(
            f"this rank needs about {describe_bytes(needed)} of its GPU, and the server on it has left "
            f"{describe_bytes(free)}; give the server less in inference.arguments (docs/one-gpu.md)"
        )
