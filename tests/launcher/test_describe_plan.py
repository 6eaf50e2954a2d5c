"""`plan=true`: what a run would hold and what is to be expected, on a machine that has nothing of it."""

import re

import pytest
from transformers import Qwen3MoeConfig

import launch
from contracts.model_shape import ModelShape
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.gpu_memory import GIB, rank_use, sequences_held, server_use
from pipelinerl.launcher.checking.model_source import fetch_model, find_model, model_in
from pipelinerl.launcher.composing.compose import compose_config
from tests.launcher.test_launch_refusals import refused


def planned(capsys, *overrides: str) -> str:
    capsys.readouterr()
    assert launch.main([*overrides, "plan=true"]) == 0
    printed = capsys.readouterr()
    assert "not every part could be tried" not in printed.err + printed.out
    return printed.out


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_a_plan_for_a_cluster_needs_none(capsys, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    sizes = ["world.servers=8", "world.trainer_ranks=32"]
    text = planned(capsys, "executor=ray", "streams=redis", "+exp=math_32b", *sizes)
    assert "executor: ray, no cluster asked (RAY_ADDRESS is not set)\n" in text
    assert "  workers              {GPU: 32, CPU: 35} in 33 bundles\n" in text
    assert re.findall(r"  (server-\d) +{GPU: 4, CPU: 1} on one node\n", text) == [
        f"server-{i}" for i in range(8)
    ]
    assert "at least 8 nodes of 8 GPUs (world.gpus)\n" in text and " 32.8 B parameters" in text
    assert "--host <its node> --port 0 " in text


def test_math_7b_on_eight_gpus_that_are_not_here(capsys):
    text = planned(capsys, "+exp=math_7b")
    placed = {line.split()[0]: line.split()[2] for line in text.splitlines() if "   GPU " in line}
    servers = {f"server-{i}": str(i) for i in range(4)}
    assert placed == servers | {f"trainer-{i}": str(4 + i) for i in range(4)}
    assert "Qwen/Qwen2.5-7B, no directory here, so from the Hugging Face hub, 7.6 B parameters" in text
    assert '--hf-overrides {"head_dtype": "float32"}' in text
    assert "expected in flight: 256 sequences" in text and "about 0.25 steps" in text
    assert "warning" not in text
    assert "a server: 72.0 GiB = weights 14.2 GiB" in text and "a trainer rank: 52" in text


def test_a_run_where_the_gpus_are_not_loads_nothing_first(capsys, tmp_path):
    settings = ["inference=transformers", "trainer=fsdp", f"run_dir={tmp_path}/run"]
    assert "torch sees 0; 0 runs on the CPU" in refused(capsys, "+exp=math_7b", *settings)


def test_a_model_that_the_hub_does_not_give(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = find_model(compose_config(["model.path=org/name"]))
    assert (model.path, model.state, model.shape) == ("org/name", "on the hub", None)
    with pytest.raises(PlanError, match="HF_HOME, or set model.path to a local directory"):
        fetch_model("org/name")


SHAPE = ModelShape(
    layers=10, hidden_size=100, intermediate_size=400, heads=10, kv_heads=5, head_dim=10, vocab_size=1000,
    context=1000, tied=True,
)  # fmt: skip
SHAPE_TEXT = ",".join(f"{field}:{value}" for field, value in vars(SHAPE).items())


@pytest.mark.parametrize(("engine", "gib"), [("vllm_gpu", 72), ("sglang_gpu", 64 + 4)])
def test_what_servers_and_ranks_share_out(engine, gib):
    config = compose_config([f"inference={engine}", "inference.gpus_per_server=2", "world.trainer_ranks=4"])
    server = server_use(config, SHAPE)
    assert server.parts["weights"] == SHAPE.parameters  # two bytes each, over two GPUs
    assert server.total == pytest.approx(gib * GIB, abs=1)
    rank = rank_use(config, SHAPE)
    assert (rank.parts["weights"], rank.parts["optimizer"]) == (SHAPE.parameters, 2 * SHAPE.parameters)


def test_a_cache_in_tokens_is_shared_out_and_cuts_a_share_short():
    def keys_and_values(*arguments: str) -> int:
        sizes = ["inference=sglang_gpu", "inference.gpus_per_server=2", *arguments]
        return server_use(compose_config(sizes), SHAPE).parts["keys and values"]

    of_token = 2 * 10 * 5 * 10  # numbers of a token; two bytes each, over two GPUs
    assert keys_and_values("inference.arguments.max_total_tokens=1000") == 1000 * of_token
    assert keys_and_values("inference.arguments.max_total_tokens=1000000000") == keys_and_values()


def test_gpus_beyond_the_heads_of_keys_and_values_hold_them_again():
    config = [compose_config(["inference=vllm_gpu", f"inference.gpus_per_server={n}"]) for n in (5, 10)]
    few, many = (sequences_held(one, SHAPE) for one in config)
    assert few == pytest.approx(many, rel=0.01)


def test_a_mixture_of_experts_has_no_shape_of_this_kind(tmp_path):
    experts = Qwen3MoeConfig(num_hidden_layers=2, num_experts=4)
    experts.save_pretrained(tmp_path)
    assert model_in(tmp_path).shape is None


OFFLOADED = "+trainer.config.zero_optimization={offload_optimizer: {device: cpu}}"
TWO_SERVERS = ("world.servers=2", "inference.concurrency=32", "batch_size=16")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["+exp=math_7b", "trainer=fsdp"], "a trainer rank: "),
        (["+exp=math_7b", "trainer=deepspeed"], "a trainer rank: "),
        (["+exp=math_7b", "inference=transformers"], "a trainer rank: "),
        (["+exp=math_7b", "batch_size=1000", "world.equal_shares=false"], "a trainer rank: "),
        (
            ["trainer=scripted", "world.gpus=2", f"model.shape={{{SHAPE_TEXT}}}"],
            "a trainer rank: its backend makes no estimate",
        ),
        (
            ["world.servers=2", "inference.concurrency=null", "batch_size=64"],
            "in flight: 128 sequences (2 servers x inference.concurrency 64 at first, for it is null)",
        ),
        (  # a batch of 16 in flight, and two and a half in front of the trainer
            ["world.servers=2", "inference.concurrency=8", "batch_size=16", "max_lag=null"],
            "while generation is faster than training up to about 3.5 (max_lag=null)",
        ),
        (
            ["+exp=math_7b_4gpu", "world.servers=2", "world.trainer_ranks=2", OFFLOADED],
            "optimizer 0 bytes",
        ),
        (["+exp=math_7b_4gpu", "inference.arguments.max_num_seqs=159"], "gets up to 160 requests"),
        (["+exp=math_7b", "eval.pinned=true", "inference.arguments.max_num_seqs=63"], "up to 64 requests"),
        (["+exp=math_7b", "inference.concurrency=null", "eval.concurrency=129"], "up to 257 requests"),
        ([*TWO_SERVERS, "max_lag=0"], "a mean of about 0, and 0 at most"),
        ([*TWO_SERVERS, "schedule=conventional"], "a mean of about 0, and 0 at most"),
        ([*TWO_SERVERS, "max_lag=1"], "a mean of about 1, and 1 at most"),
        (["weights=relay", "max_lag=0"], "expected waits: after every step"),
    ],
)
def test_a_plan_says_what_is_to_be_expected(capsys, overrides, says):
    assert says in planned(capsys, *overrides)
