"""What a rank holds in host memory: of DeepSpeed when it starts, stage 3; of both backends when it saves."""

import ctypes
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from pipelinerl.launcher.checking.model_source import model_in
from tests.ports import free_port
from tests.trainer_adapters.workers import backend, run_ranks, started
from trainer_adapters.deepspeed import DeepSpeedTrainer

pytestmark = pytest.mark.long
BFLOAT16 = 2  # bytes
FLOAT32 = 4
M_MMAP_THRESHOLD = -3  # of glibc's mallopt


def memory(line: str) -> int:
    """Returns the bytes in this process's status: VmRSS, what is resident, or VmHWM, its peak."""
    return 1024 * int(Path("/proc/self/status").read_text().partition(f"{line}:")[2].split()[0])


def reset_peak() -> int:
    """Returns what is resident, from which VmHWM counts on. Tensors freed later leave no hole in the heap."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 2**17)
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def start(rank: int, size: int, port: int, model: str) -> tuple[int, int]:
    """Returns the elements that are not partitioned when DeepSpeed gets the model, and the peak before."""
    import deepspeed

    found = []
    initialize = deepspeed.initialize

    def measured(model, **options):
        found.append(sum(parameter.numel() for parameter in model.parameters()))
        found.append(memory("VmHWM") - before)
        return initialize(model=model, **options)

    deepspeed.initialize = measured
    before = reset_peak()
    with started(DeepSpeedTrainer(zero_stage=3, compute_dtype="bfloat16"), model, rank, size, port):
        return tuple(found)


def made_model(directory: Path) -> tuple[str, int]:
    """Returns the directory of a new model, and the number of its parameters."""
    config = LlamaConfig(
        vocab_size=2000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
        num_attention_heads=4, num_key_value_heads=4,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    return str(directory), model.num_parameters()


def test_a_deepspeed_rank_other_than_0_never_holds_a_full_copy(tmp_path):
    model, parameters = made_model(tmp_path / "model")
    results = run_ranks(2, start, tmp_path, free_port(), model)
    (unpartitioned, first), (_, second) = results
    assert unpartitioned == 0
    assert first > FLOAT32 * parameters  # it reads them
    assert second < 0.9 * BFLOAT16 * parameters  # half of them are its own


def save(rank: int, size: int, port: int, model: str, kind: str, directory: str) -> int:
    """Returns the bytes that a rank adds while it saves a checkpoint."""
    with started(backend(kind), model, rank, size, port) as worker:
        before = reset_peak()
        worker.save(Path(directory)).wait()
        return memory("VmHWM") - before


@pytest.mark.parametrize("kind", ["fsdp-bf16", "zero3-bf16"])
def test_a_footprint_is_what_saving_takes_of_host_memory_and_disk(tmp_path, kind):
    model, parameters = made_model(tmp_path / "model")
    taken = backend(kind).footprint(model_in(Path(model)).shape, 2)
    checkpoint = tmp_path / "checkpoint"
    for added in run_ranks(2, save, tmp_path, free_port(), model, kind, str(checkpoint)):
        assert taken.saving * 0.9 < added < taken.saving * 1.5  # more for what torch imports
    written = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
    assert written == pytest.approx(taken.checkpoint, rel=0.01)
    assert taken.whole == FLOAT32 * parameters
