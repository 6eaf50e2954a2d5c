"""Finds what this machine lacks of what a run on GPUs needs: driver, C compiler, Python.h and shared memory.

Called by `components.py` before a run on one machine, and by the plan. Must not know the model.
"""

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from contracts.support.sizes import describe_bytes
from pipelinerl.config import EngineConfig, RunConfig
from pipelinerl.launcher.checking.interpreters import header_directory, installed
from pipelinerl.launcher.jobs import interpreter_of, missing_engine

DRIVER = "libcuda.so.1"
OLDEST_DRIVER = {12: 525, 13: 580}  # for a major version of CUDA: docs.nvidia.com/deploy/cuda-compatibility
TRITON_ENGINES = ("vllm", "sglang")
HEADER_PATHS = ("CPATH", "C_INCLUDE_PATH")  # of the C compiler
SHARED_MEMORY = "/dev/shm"
NCCL_SHARED_MEMORY = 1 << 30  # bytes; NVIDIA's advice for containers: docs of NCCL, "Troubleshooting"


def lacking(config: RunConfig) -> Iterator[str]:
    """Yields a line for each thing without which the run fails on this machine."""
    if config.device != "cuda":
        return
    import torch

    found = [fault_of_driver(torch.version.cuda, driver_cuda())]
    found += [fault_of_engine(engine) for engine in _used_engines(config)]
    if (pythons := _compiling(config)) and not _has_compiled():
        found.append(fault_of_compiler())
        found += [fault_of_header(python) for python in pythons]
    yield from filter(None, found)


def driver_cuda() -> tuple[int, int] | None:
    """Returns the newest version of CUDA that the driver of this machine supports, or None without one."""
    version = ctypes.c_int()
    try:
        library = ctypes.CDLL(DRIVER)
    except OSError:
        return None
    library.cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000, version.value % 1000 // 10


def fault_of_driver(torch_cuda: str | None, driver: tuple[int, int] | None) -> str | None:
    """Returns why torch cannot use the driver. A driver supports later minor versions of its CUDA."""
    if torch_cuda is None:  # torch sees no GPU
        return None
    major = int(torch_cuda.partition(".")[0])
    oldest = f"install NVIDIA's driver {OLDEST_DRIVER.get(major, 'for it')} or newer"
    if driver is None:
        return (
            f"torch is built for CUDA {torch_cuda}, and there is no {DRIVER} of a driver: {oldest}, or give "
            "the container the GPUs (--gpus all)"
        )
    if driver[0] < major:
        return (
            f"torch is built for CUDA {torch_cuda}, and the driver supports CUDA {driver[0]}.{driver[1]}: "
            f"{oldest}, or a torch for CUDA {driver[0]}"
        )
    return None


def _compiling(config: RunConfig) -> list[str]:
    """Returns the interpreters in which Triton compiles C code at the first use of a kernel."""
    using = [engine for engine in _used_engines(config) if engine.package in TRITON_ENGINES]
    own = [sys.executable] if config.trainer.options.get("compile_layers") else []
    return list(dict.fromkeys([*map(interpreter_of, using), *own]))


def _used_engines(config: RunConfig) -> list[EngineConfig]:
    served = config.inference.used_engines(config.world.servers).values()
    return [e for e in (*served, *filter(None, [config.reference])) if not missing_engine(e)]


def fault_of_engine(engine: EngineConfig) -> str | None:
    """Returns why the engine sees no GPU: its environment may be the one for CPUs."""
    python = interpreter_of(engine)
    if python == sys.executable:  # its torch is the trainer's
        return None
    name, version = installed(python, ("torch",)) or ("torch", "")
    if not version.endswith("+cpu"):
        return None
    wanted = engine.package or "the engine"
    return f"{python} has {name} {version}, which sees no GPU: install {wanted} for GPUs there"


def _has_compiled() -> bool:
    """Returns True if Triton keeps results on this machine, as in an image where all was compiled before."""
    kept = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    return kept.is_dir() and any(kept.iterdir())


def fault_of_compiler() -> str | None:
    """Returns why Triton finds no C compiler. It takes CC as one path, and else looks for clang and gcc."""
    named = os.environ.get("CC")
    if named is not None and not shutil.which(named):
        return f"CC={named} is no program here, and Triton compiles with it: set it to one, without options"
    if named is None and not (shutil.which("clang") or shutil.which("gcc")):
        return (
            "there is no C compiler, which Triton needs: install gcc (apt-get install gcc), or set CC to one"
        )
    return None


def fault_of_header(python: str) -> str | None:
    """Returns why Triton finds no Python.h of this interpreter, or None if that is not known."""
    directory = header_directory(python)
    if directory is None or (directory / "Python.h").exists() or any(map(os.environ.get, HEADER_PATHS)):
        return None
    return (
        f"there is no {directory}/Python.h, which Triton needs for {python}: install {directory.name}-dev, "
        "or set CPATH to the directory that has it"
    )


def free_shared_memory() -> int:
    """Returns the free bytes of /dev/shm: none where there is none."""
    try:
        return shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        return 0


def caution_of_shared_memory() -> str | None:
    """Returns a line if /dev/shm may be too small for NCCL, as it is in a container by default."""
    free = free_shared_memory()
    if free >= NCCL_SHARED_MEMORY:
        return None
    return (
        f"{SHARED_MEMORY} has {describe_bytes(free)} left, and NCCL may need up to "
        f"{describe_bytes(NCCL_SHARED_MEMORY)}: start the container with --shm-size=1g or more, or --ipc=host"
    )
