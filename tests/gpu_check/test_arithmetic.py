"""The arithmetic of utilisation and of planned memory, without a GPU."""

from benchmarks.gpu_check.flops import training_flops
from benchmarks.gpu_check.models import HALF_A_BILLION
from benchmarks.gpu_check.training import (
    Variant,
    describe_memory,
    planned_tensors,
    run_config,
)
from contracts.model_shape import ModelShape
from pipelinerl.launcher.checking.gpu_memory import GIB, rank_use

SMALL = ModelShape(
    layers=3, hidden_size=8, intermediate_size=16, heads=2, kv_heads=1, head_dim=4, vocab_size=100,
    context=64, tied=False,
)  # fmt: skip


def test_operations_of_a_small_model_are_those_counted_by_hand():
    layer = (
        8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16 + 2 * 8
    )  # queries, keys and values, output, feed-forward, norms
    weights = 3 * layer + 8 + 100 * 8  # a final norm and the head, whose embedding is only looked up
    attention = 12 * 3 * 8 * (10 * 10 + 6 * 6) / 2
    assert training_flops(SMALL, [10, 6]) == 6 * weights * 16 + attention


def test_memory_is_compared_with_the_plan_of_a_run():
    plan = rank_use(run_config(Variant(fp32_head=True, checkpointing=False), 16_384), HALF_A_BILLION)
    tensors = planned_tensors(plan)
    assert tensors == plan.total - 4 * GIB
    states = 16 * HALF_A_BILLION.parameters
    assert states < tensors < 60 * GIB
    less = rank_use(run_config(Variant(fp32_head=False, checkpointing=True), 16_384), HALF_A_BILLION)
    assert less.total < plan.total - 10 * GIB
    assert "(ratio 0.50)" in describe_memory(plan, tensors // 2, 0)
