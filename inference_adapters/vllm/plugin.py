"""The plugin that vLLM loads in each of its processes (entry point `vllm.general_plugins`)."""

import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.platforms import current_platform
from vllm.v1.engine.core import EngineCore

from inference_adapters.threads import daemon_thread
from inference_adapters.vllm import batch_rows, committed_states, draws
from inference_adapters.vllm.cpu_gaps import convolve_one_token, stand_in_for_torchvision

BACKEND = "pipelinerl"  # name of the backend in vLLM's --weight-transfer-config
SERVER_VARIABLE = "PIPELINERL_VLLM_SERVER"  # set in the processes of this adapter's servers


def register() -> None:
    """Extends vLLM in this process."""
    allow_amx()
    if current_platform.is_cpu() and os.environ.get(SERVER_VARIABLE):
        stand_in_for_torchvision()
        convolve_one_token()
    WeightTransferEngineFactory.register_engine(
        BACKEND, "inference_adapters.vllm.transport", "GroupTransport"
    )
    batch_rows.extend()
    draws.extend()
    committed_states.extend()
    EngineCore.forget_prefixes = forget_prefixes  # EngineClient.forget_cache calls it by this name
    parent = multiprocessing.parent_process()
    if parent and os.environ.get(SERVER_VARIABLE):
        daemon_thread(_end_with, parent)


def allow_amx() -> None:
    """Requests permission to use AMX tile registers from Linux.

    vLLM's bfloat16 attention on CPUs uses them without permission, and crashes by an illegal instruction.
    """
    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()


def forget_prefixes(core: EngineCore) -> None:
    """Removes all blocks from the prefix cache, including those that requests in flight use.

    vLLM's reset needs all blocks to be free. Otherwise a request that waits during an update would use keys
    and values of the old weights.
    """
    manager = core.scheduler.kv_cache_manager
    cached = {block.block_id for block in manager.block_pool.blocks if block.block_hash is not None}
    manager.evict_blocks(cached)


def _end_with(parent: BaseProcess) -> None:
    """Kills this process when the server has ended. An orphaned engine would keep its memory."""
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
