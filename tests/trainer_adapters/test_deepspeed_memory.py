"""What a rank of DeepSpeedTrainer holds in host memory when it starts, stage 3 and bfloat16."""

import ctypes
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from tests.ports import free_port
from tests.trainer_adapters.workers import run_ranks, started
from trainer_adapters.deepspeed import DeepSpeedTrainer

pytestmark = pytest.mark.long
BFLOAT16 = 2  # bytes
FLOAT32 = 4
M_MMAP_THRESHOLD = -3  # of glibc's mallopt


def memory(line: str) -> int:
    """Returns the bytes in this process's status: VmRSS, what is resident, or VmHWM, its peak."""
    return 1024 * int(Path("/proc/self/status").read_text().partition(f"{line}:")[2].split()[0])


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
    # A tensor that is freed leaves no hole in the heap.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**17)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = memory("VmRSS")
    with started(DeepSpeedTrainer(zero_stage=3, compute_dtype="bfloat16"), model, rank, size, port):
        return tuple(found)


def test_a_deepspeed_rank_other_than_0_never_holds_a_full_copy(tmp_path):
    config = LlamaConfig(
        vocab_size=2000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
        num_attention_heads=4, num_key_value_heads=4,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    parameters = model.num_parameters()
    model.save_pretrained(tmp_path / "model")
    del model
    results = run_ranks(2, start, tmp_path, free_port(), str(tmp_path / "model"))
    (unpartitioned, first), (_, second) = results
    assert unpartitioned == 0
    assert first > FLOAT32 * parameters  # it reads them
    assert second < 0.9 * BFLOAT16 * parameters  # half of them are its own
