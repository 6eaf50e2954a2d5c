"""Prints what vLLM's configuration becomes on an H100, run by vLLM's own Python on a machine without one.

Each argument is a server's options as a JSON list. The adapter's parser reads them, and vLLM makes the same
configuration as when the server loads. The GPU and Triton are faked: nothing is computed.
"""

import json
import sys
import types

from vllm import platforms

from inference_adapters.vllm.__main__ import _arguments, _set_variables


def h100() -> platforms.Platform:
    sys.modules["vllm._C_stable_libtorch"] = types.ModuleType("kernels")  # which the build for CPUs lacks
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    class H100(CudaPlatformBase):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(9, 0)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA H100 80GB HBM3"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 80 * 2**30

        @classmethod
        def device_count(cls) -> int:
            return 8

    return H100()


def main() -> None:
    _set_variables()
    import vllm.config.vllm
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.model_executor.models import registry
    from vllm.v1.engine.core_client import VLLM_ENGINE_READY_TIMEOUT_S

    vllm.config.vllm.HAS_TRITON = True
    # What a model's class declares is kept in a cache, by a module that needs CUDA's kernels.
    registry._LazyRegisteredModel._save_modelinfo_to_cache = lambda *arguments: None
    for options in sys.argv[1:]:
        sys.argv = ["vllm", *json.loads(options)]
        config = AsyncEngineArgs.from_cli_args(_arguments()).create_engine_config()
        found = {
            "context": config.model_config.max_model_len,
            "places": config.scheduler_config.max_num_seqs,
            "tokens": config.scheduler_config.max_num_batched_tokens,
            "graphs": config.compilation_config.cudagraph_mode.name,
            "largest_graph": config.compilation_config.max_cudagraph_capture_size,
            "asynchronous": config.scheduler_config.async_scheduling,
            "second_runner": config.use_v2_model_runner,
            "start_s": VLLM_ENGINE_READY_TIMEOUT_S,
            "executor": config.parallel_config.distributed_executor_backend,
        }
        print(json.dumps(found))


platforms._current_platform = h100()  # before anything asks which one there is
main()
