"""`world.share_gpus`: a server and a trainer rank on one GPU, in the plan and in their places."""

import re

import pytest

from contracts.model_shape import ModelShape
from contracts.support.sizes import describe_bytes
from pipelinerl.launcher.checking.gpu_memory import GIB, RUNTIME, rank_use, server_use
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.launcher.executors.local import LocalExecutor
from pipelinerl.launcher.prepare import place
from pipelinerl.launcher.resource_requests import job_specs
from tests.launcher.test_describe_plan import planned
from tests.launcher.test_launch_refusals import refused

SMALLER = (  # Qwen2.5-0.5B
    "model.path=Qwen/Qwen2.5-0.5B",
    "model.shape={layers: 24, hidden_size: 896, intermediate_size: 4864, heads: 14, kv_heads: 2,"
    " head_dim: 64, vocab_size: 151936, context: 32768, tied: true}",
)
LARGER = (  # Qwen2.5-7B
    "model.path=Qwen/Qwen2.5-7B",
    "model.shape={layers: 28, hidden_size: 3584, intermediate_size: 18944, heads: 28, kv_heads: 4,"
    " head_dim: 128, vocab_size: 152064, context: 131072, tied: false}",
)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize(
    "settings", [("+exp=math_1gpu",), ("+exp=math_1gpu", *SMALLER), ("+exp=math_1gpu_24gb",)]
)
def test_a_plan_adds_what_the_two_hold(capsys, settings):
    text = planned(capsys, *settings)
    config = compose_config(settings)
    share = config.inference.arguments["gpu_memory_utilization"] * config.world.gpu_memory_gib * GIB
    both = int(share) + rank_use(config, config.model.shape).total
    assert f"  both, on one GPU: {describe_bytes(both)}\n" in text
    assert re.findall(r"(?m)^(\S+) +GPU (\d) ", text) == [("server-0", "0"), ("trainer-0", "0")]


IN_TURNS = (
    "+exp=math_1gpu", "schedule=colocated", "max_lag=1", "inference=transformers",
    "inference.arguments.dtype=bfloat16", "+inference.arguments.num_blocks=15000",
)  # fmt: skip


def test_a_plan_in_turns_has_the_larger_of_its_moments(capsys):
    text = planned(capsys, *IN_TURNS)
    config = compose_config(IN_TURNS)
    server = server_use(config, config.model.shape).total
    rank = rank_use(config, config.model.shape).parts
    start = server + rank["weights"] + rank["optimizer"] + rank["CUDA, NCCL, ..."]
    assert start > sum(rank.values()) + RUNTIME
    assert f"  in turns (schedule=colocated): {describe_bytes(start)} at most, at the start\n" in text
    assert "  both, on one GPU: " not in text


@pytest.mark.parametrize(
    ("gib", "said"),
    [(40, "set inference.arguments.num_blocks="), (34, "have the trainer hold less: trainer.lora, ")],
)
def test_turns_that_cannot_fit_are_refused_with_what_would(capsys, gib, said):
    line = refused(capsys, *IN_TURNS, f"world.gpu_memory_gib={gib}", "plan=true")
    assert "a server and a trainer rank that take turns hold " in line and said in line


def test_a_server_of_transformers_holds_its_blocks():
    config = compose_config(["inference=transformers", "+inference.arguments.num_blocks=15"])
    shape = ModelShape(
        layers=2, hidden_size=8, intermediate_size=8, heads=2, kv_heads=1, head_dim=4, vocab_size=10,
        context=100, tied=True,
    )  # fmt: skip
    assert server_use(config, shape).parts["keys and values"] == 15 * 32 * shape.kv_bytes(4)


@pytest.mark.parametrize(
    ("settings", "lighter"),
    [
        ((), "trainer.lora, packing.micro_batch_tokens=3072, DeepSpeed's offloading"),
        (
            ("+trainer.lora={rank: 16, alpha: 32}", "world.gpu_memory_gib=48"),
            "packing.micro_batch_tokens=3072",
        ),
        (("trainer.activation_checkpointing=false",), "trainer.activation_checkpointing=true"),
    ],
)
def test_what_cannot_fit_is_refused_with_what_would_be_lighter(capsys, settings, lighter):
    line = refused(capsys, "+exp=math_1gpu", *LARGER, *settings, "plan=true")
    assert "take a smaller model, or have the trainer hold less: " in line and lighter in line
    assert ("trainer.lora" in line) == ("+trainer.lora={rank: 16, alpha: 32}" not in settings)


@pytest.mark.parametrize("gib", [39.95, 52])
@pytest.mark.parametrize(
    ("server", "option"),
    [
        (["inference.arguments.gpu_memory_utilization=0.8"], "gpu_memory_utilization"),
        (["inference.arguments.kv_cache_memory_bytes=200000000"], "gpu_memory_utilization"),
        (["inference=sglang_gpu", "inference.arguments.mem_fraction_static=0.7"], "mem_fraction_static"),
        (
            [
                "inference=transformers",
                "inference.arguments.dtype=bfloat16",
                "+inference.arguments.num_blocks=15000",
            ],
            "num_blocks",
        ),
    ],
)
def test_a_refusal_names_a_share_that_fits(capsys, server, option, gib):
    tight = ["+exp=math_1gpu", f"world.gpu_memory_gib={gib}", *server]
    line = refused(capsys, *tight, "plan=true")
    advice = re.search(rf"set (\+?inference\.arguments\.{option}=[\d.]+)$", line)
    assert "both, on one GPU: " in planned(capsys, *tight, advice[1])


def test_each_gpu_has_a_server_and_a_rank_and_gets_a_new_server_for_the_one_that_left():
    counts = ["world.gpus=3", "world.servers=2", "world.trainer_ranks=2", "world.share_gpus=true"]
    config = compose_config(counts)
    executor = LocalExecutor(["4", "5", "6"])
    placements = place(config, executor, job_specs(config))
    names = ("server-0", "server-1", "trainer-0", "trainer-1")
    assert [placements[name].gpus for name in names] == ["4", "5", "4", "5"]
    executor.release(["trainer-1", "server-0"])
    executor.request([request for _, request in job_specs(config) if request.name == "server-0"])
    assert executor.poll()["server-0"].placement.gpus == "4"
    executor.close()


def test_it_has_no_effect_on_cpus():
    config = compose_config(["world.share_gpus=true", "world.servers=2"])
    assert not config.shares_gpus
    assert {spec.request.gpu_pool for spec in job_specs(config)} == {""}
