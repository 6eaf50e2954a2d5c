"""Serves by vLLM as it runs on a GPU: the next step is scheduled before the last one's tokens are known.

    .venv-vllm/bin/python -m tests.engines.overlapped_vllm --model PATH --port 8000 --enforce-eager

On a CPU vLLM turns asynchronous scheduling off, and has its worker in a process of its own. Here the first
is on, and the worker is in the scheduler's process. The model runner is vLLM's first one: the second needs
Triton for CPUs. Streams and events of CUDA do nothing, since a CPU has computed what a call returns. vLLM's
processes import this module again, so each is changed alike.
"""

import contextlib

import torch
from vllm.config import VllmConfig
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.engine.core import EngineCore

from inference_adapters.vllm.__main__ import main

_update = CpuPlatform.check_and_update_config.__func__


class OfNoDevice:
    """A stream or an event of CUDA, on which nothing waits."""

    def __init__(self, **options: object): ...

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, other: object) -> None: ...


def as_on_a_gpu(platform: type[CpuPlatform], config: VllmConfig) -> None:
    scheduled = config.scheduler_config.async_scheduling
    executor = config.parallel_config.distributed_executor_backend
    _update(platform, config)
    config.scheduler_config.async_scheduling = scheduled
    config.parallel_config.distributed_executor_backend = executor


CpuPlatform.check_and_update_config = classmethod(as_on_a_gpu)
EngineCore.step = None  # an engine that overlaps no steps would call it, and end
torch.cuda.Event = torch.cuda.Stream = torch.cuda.current_stream = OfNoDevice
torch.cuda.stream = contextlib.nullcontext

if __name__ == "__main__":
    main()
