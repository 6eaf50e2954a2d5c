"""Serves by vLLM as it runs on a GPU: the next step is scheduled before the last one's tokens are known.

    .venv-vllm/bin/python -m tests.engines.overlapped_vllm --model PATH --port 8000 --enforce-eager

On a CPU vLLM turns asynchronous scheduling off, and has its worker in a process of its own. Here the first
is on, and the worker is in the scheduler's process. Streams and events of CUDA do nothing, since a CPU has
computed what a call returns. vLLM's processes import this module again, so each is changed alike.

With `TRITON_INTERPRET=1` vLLM takes its second model runner, as on a GPU. Triton interprets the kernels,
which takes a tenth of a second a step. It cannot interpret the one of top-k and top-p: PyTorch truncates.
"""

import contextlib
import os
from types import SimpleNamespace

import torch
from triton.backends import backends

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:  # vLLM asks for the backend of CPUs when it is imported
    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False))

from vllm.config import VllmConfig  # noqa: E402
from vllm.platforms.cpu import CpuPlatform  # noqa: E402
from vllm.v1.engine.core import EngineCore  # noqa: E402
from vllm.v1.sample.ops import topk_topp_sampler  # noqa: E402

from inference_adapters.vllm.__main__ import main  # noqa: E402

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
if INTERPRETED:
    topk_topp_sampler.HAS_TRITON = False
torch.cuda.Event = torch.cuda.Stream = torch.cuda.current_stream = OfNoDevice
torch.cuda.stream = contextlib.nullcontext

if __name__ == "__main__":
    main()
