"""What a machine lacks of what a run on GPUs needs is told in one line each, and estimates are recomputed."""

import shutil
import sys
from types import SimpleNamespace

import pytest

from extensions.cluster.on_ray.keeper import with_interface_of_nccl
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking import prerequisites
from pipelinerl.launcher.checking.host_needs import describe_host, disk_parts, footprint, shared_memory
from pipelinerl.launcher.checking.prerequisites import (
    caution_of_shared_memory,
    fault_of_compiler,
    fault_of_driver,
    fault_of_header,
    lacking,
)
from pipelinerl.launcher.checking.room import check_room
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.training.checkpoints import Checkpoints
from tests.launcher.test_describe_plan import OFFLOADED, SHAPE

GIB = 2**30


@pytest.mark.parametrize(
    ("torch_cuda", "driver", "says"),
    [
        ("13.0", None, "there is no libcuda.so.1 of a driver: install NVIDIA's driver 580 or newer"),
        ("13.0", (12, 9), "the driver supports CUDA 12.9: install NVIDIA's driver 580 or newer"),
        ("13.0", (13, 0), None),
        ("13.2", (13, 0), None),
        ("12.8", (13, 0), None),
        (None, None, None),
    ],
)
def test_the_driver_is_of_torchs_cuda_or_a_newer_one(torch_cuda, driver, says):
    line = fault_of_driver(torch_cuda, driver)
    assert line is None if says is None else says in line


def test_a_c_compiler_is_looked_for_as_triton_does(monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no C compiler, which Triton needs: install gcc" in fault_of_compiler()
    monkeypatch.setenv("CC", "icc")
    assert fault_of_compiler().startswith("CC=icc is no program here")
    for name in ("icc", "gcc"):
        (tmp_path / name).touch(mode=0o755)
        assert fault_of_compiler() is None
        monkeypatch.delenv("CC", raising=False)


def test_python_h_is_that_of_the_interpreter_itself(monkeypatch, tmp_path):
    for name in prerequisites.HEADER_PATHS:
        monkeypatch.delenv(name, raising=False)
    for name in ("usr/bin", "venv/bin", "usr/include/python3.11", "usr/lib/python3.11"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "usr" / "bin" / "python3.11").touch(mode=0o755)
    python = tmp_path / "venv" / "bin" / "python"
    python.symlink_to(tmp_path / "usr" / "bin" / "python3.11")
    headers = tmp_path / "usr" / "include" / "python3.11"
    assert fault_of_header(str(python)) is None  # a wrapper may have that name
    (tmp_path / "usr" / "lib" / "python3.11" / "os.py").touch()
    line = fault_of_header(str(python))
    assert f"there is no {headers}/Python.h" in line and "install python3.11-dev, or set CPATH" in line
    (headers / "Python.h").touch()
    assert fault_of_header(str(python)) is None


def free(monkeypatch, size: int) -> None:
    """Has every disk, and /dev/shm, have this many free bytes."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=size))


def test_little_shared_memory_is_a_warning(monkeypatch):
    free(monkeypatch, 64 << 20)
    assert "/dev/shm has 64.0 MiB left, and NCCL may need up to 1.0 GiB" in caution_of_shared_memory()
    free(monkeypatch, GIB)
    assert caution_of_shared_memory() is None


@pytest.mark.parametrize(("torch", "is_refused"), [("2.13.0+cpu", True), ("2.13.0", False)])
def test_an_engine_that_is_for_cpus_is_refused(tmp_path, torch, is_refused):
    """As `make vllm-env` installs it."""
    python = tmp_path / "bin" / "python"
    wheel = tmp_path / "lib" / "python3.11" / "site-packages" / f"torch-{torch}.dist-info"
    for directory in (python.parent, wheel):
        directory.mkdir(parents=True)
    python.touch(mode=0o755)
    (wheel / "METADATA").write_text(f"Name: torch\nVersion: {torch}\n")
    config = compose_config(
        ["world.gpus=2", "inference=vllm_gpu", f"inference.python={python}", "model.path=m"]
    )
    lines = [line for line in lacking(config) if "sees no GPU: install vllm for GPUs there" in line]
    assert bool(lines) == is_refused


def test_shared_memory_that_is_not_there_has_no_room(monkeypatch):
    monkeypatch.setattr(prerequisites, "SHARED_MEMORY", "/nothing")
    assert "/nothing has 0 bytes left" in caution_of_shared_memory()


def test_only_what_compiles_needs_a_compiler_and_only_gpus_need_anything(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    own = f"inference.python={sys.executable}"
    without = {
        name: [*lacking(compose_config([*settings, "model.path=m"]))]
        for name, settings in {
            "on a CPU": ["inference=vllm", own],
            "transformers": ["world.gpus=2"],
            "vLLM": ["world.gpus=2", "inference=vllm_gpu", own],
            "compiled": ["world.gpus=2", "trainer.compile_layers=true"],
            "not used": ["world.gpus=2", "inference=all_engines", "world.servers=1"],
        }.items()
    }
    assert [name for name, lines in without.items() if lines] == ["vLLM", "compiled"]
    (tmp_path / "cache" / "a kernel").mkdir(parents=True)
    assert not [*lacking(compose_config(["world.gpus=2", "trainer.compile_layers=true", "model.path=m"]))]


# --- estimates ------------------------------------------------------------------------------------

TWO_GPUS = ["world.gpus=2", "world.trainer_ranks=2", "model.path=m"]
N = 10 * (2 * 100 * 10 * (10 + 5) + 3 * 100 * 400 + 2 * 100) + 1000 * 100 + 100  # parameters of SHAPE


@pytest.mark.parametrize(
    ("settings", "kept", "saving"),
    [
        (["trainer=fsdp"], 0, 12 * N // 2),
        (["trainer=deepspeed_zero3"], 0, 2 * (12 * N // 2)),  # gathered, and copied
        (["trainer=deepspeed_zero3", OFFLOADED], 16 * N // 2, 2 * (12 * N // 2)),
    ],
)
def test_a_rank_holds_what_it_offloads_and_copies_what_it_saves(settings, kept, saving):
    taken = footprint(compose_config([*TWO_GPUS, *settings]), SHAPE)
    assert (taken.rank, taken.saving) == (kept, saving)
    assert (taken.whole, taken.export, taken.checkpoint) == (4 * N, 4 * N, 12 * N)


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ([], [2 * 12 * N, 12 * N]),  # two that are kept, and the next one, before the oldest is removed
        (["checkpoint.keep=3"], [3 * 12 * N, 12 * N]),
        (["checkpoint.every=null"], [4 * N]),
        (["checkpoint.every=null", "weights=relay", "world.servers=2"], [4 * N, (3 + 2 + 2 * 3) * 4 * N]),
    ],
)
def test_the_disk_holds_one_checkpoint_more_than_are_kept_or_the_export(settings, most):
    config = compose_config([*TWO_GPUS, *settings])
    assert [*disk_parts(config, SHAPE, footprint(config, SHAPE)).values()] == most


def test_weights_in_shared_memory_are_of_each_sglang_server_and_of_two_versions():
    sglang = ["inference=sglang_gpu", "world.servers=3", "weights.dtype=bfloat16"]
    assert shared_memory(compose_config([*TWO_GPUS, *sglang]), SHAPE) == 3 * 2 * N
    assert shared_memory(compose_config([*TWO_GPUS, *sglang, "weights=shared"]), SHAPE) == 5 * 2 * N
    assert shared_memory(compose_config([*TWO_GPUS, "inference=vllm_gpu"]), SHAPE) == 0


def test_all_at_a_time_is_the_largest_moment_of_the_trainer_and_what_servers_hold():
    staged = [
        "inference=vllm_gpu",
        "inference.receive=staged",
        "inference.gpus_per_server=2",
        "world.servers=2",
    ]
    config = compose_config([*TWO_GPUS, *staged, "trainer=fsdp", "weights.dtype=bfloat16"])
    mib = (12 * N + 2 * 2 * 2 * N) / 2**20
    assert f"  all at a time: {mib:.1f} MiB" in [*describe_host(config, SHAPE)]
    sglang = compose_config([*TWO_GPUS, "inference=sglang_gpu", "world.servers=3"])
    assert f"  /dev/shm in all: {3 * 4 * N / 2**20:.1f} MiB" in [*describe_host(sglang, SHAPE)]


def test_a_small_disk_is_warned_of_and_what_is_there_already_counts(monkeypatch, tmp_path, capsys):
    config = compose_config(["model.path=m"])
    free(monkeypatch, 36 * N - 1)
    check_room(config, SHAPE, tmp_path)
    assert capsys.readouterr().out.startswith(f"warning: the disk of {tmp_path} has ")
    saved = Checkpoints(tmp_path).worker(7)
    saved.mkdir(parents=True)
    (saved / "shard").write_bytes(b"x")
    check_room(config, SHAPE, tmp_path)
    assert capsys.readouterr().out == ""


def test_shared_memory_that_sglang_cannot_do_with_is_refused(monkeypatch, tmp_path):
    config = compose_config([*TWO_GPUS, "inference=sglang_gpu"])
    free(monkeypatch, 4 * N - 1)
    with pytest.raises(PlanError, match=r"^/dev/shm has .* start the container with a larger --shm-size"):
        check_room(config, SHAPE, tmp_path)


def test_nccl_has_gloos_interface_unless_the_user_names_one():
    assert with_interface_of_nccl({"A": "b"}, "eth1") == {"A": "b", "NCCL_SOCKET_IFNAME": "=eth1"}
    assert with_interface_of_nccl({"NCCL_SOCKET_IFNAME": "ib"}, "eth1") == {"NCCL_SOCKET_IFNAME": "ib"}
    assert with_interface_of_nccl({}, None) == {}
