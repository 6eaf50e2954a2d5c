"""The functions that vLLM calls in every process it starts (entry point `vllm.general_plugins`)."""

import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.v1.engine.core import EngineCore

from inference_adapters.threads import daemon_thread

BACKEND = "pipelinerl"  # the backend in vLLM's --weight-transfer-config
SERVER_VARIABLE = "PIPELINERL_VLLM_SERVER"  # set in the processes of an adapter's server


def register() -> None:
    allow_amx()
    WeightTransferEngineFactory.register_engine(
        BACKEND, "inference_adapters.vllm.transport", "GroupTransport"
    )
    EngineCore.forget_prefixes = forget_prefixes  # EngineClient.forget_cache calls it by this name
    parent = multiprocessing.parent_process()
    if parent and os.environ.get(SERVER_VARIABLE):
        daemon_thread(_end_with, parent)


def allow_amx() -> None:
    """Requests the tile registers of AMX from Linux, which a process may not use otherwise.

    vLLM's attention on CPUs uses them in bfloat16 without asking, and dies of an illegal instruction.
    """
    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()


def forget_prefixes(core: EngineCore) -> None:
    """Removes every block from the prefix cache, including those that requests in flight still use.

    vLLM's own reset needs all blocks to be free. Without this, a request that waits during an update would
    find keys and values of the old weights when it starts.
    """
    manager = core.scheduler.kv_cache_manager
    cached = {block.block_id for block in manager.block_pool.blocks if block.block_hash is not None}
    manager.evict_blocks(cached)


def _end_with(parent: BaseProcess) -> None:
    """Ends this process when the server has ended; otherwise an orphaned engine would keep its memory."""
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
