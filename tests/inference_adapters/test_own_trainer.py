"""The trainer of examples/own_trainer.py imports nothing of the project, and trains a server at once."""

import ast
import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch

from contracts.inference import Parameter, ScoreRequest
from contracts.weights import pack_bucket, parameter_bytes, plan_buckets
from inference_adapters.scripted import EMBED, HEAD, ScriptedEngine
from tests.inference_adapters.servers import Server
from tests.limits import HANG_S

ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / "examples" / "own_trainer.py"


def test_a_trainer_of_ones_own_puts_its_weights_into_a_server(server: Server, tmp_path):
    weights = ScriptedEngine.initial_weights(seed=7)
    torch.save(weights | {HEAD: weights[EMBED]}, tmp_path / "weights.pt")  # one memory, two names
    command = (sys.executable, TRAINER, tmp_path / "weights.pt", server.url)
    proxy = {"HTTP_PROXY": "http://127.0.0.1:9"}  # there is none
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, env=os.environ | proxy)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{server.url} [{{'version': 1, 'start': 0, ")

    sequences = [[5, 60, 7, 30, 12], [90, 3]]
    expected = asyncio.run(ScriptedEngine(seed=7).score(ScoreRequest(sequences=sequences)))
    body = json.dumps({"sequences": sequences}).encode()
    asked = urllib.request.Request(f"{server.url}/score", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=HANG_S) as answer:
        scored = json.load(answer)
    assert scored["version"] == 1
    for found, wanted in zip(scored["logprobs"], expected.logprobs, strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)


def test_the_trainer_imports_nothing_of_the_project():
    imports = [node for node in ast.walk(ast.parse(TRAINER.read_text())) if isinstance(node, ast.Import)]
    names = {alias.name.partition(".")[0] for node in imports for alias in node.names}
    assert names <= {*sys.stdlib_module_names, "torch"}


def test_the_contract_links_to_the_trainer():
    assert f"](../examples/{TRAINER.name})" in (ROOT / "docs" / "inference-contract.md").read_text()


def test_the_contracts_example_of_buckets_is_right():
    shapes = [("float32", [2]), ("float32", [1]), ("bfloat16", [2]), ("bfloat16", [3, 3]), ("bfloat16", [])]
    parameters = [
        Parameter(name=name, dtype=dtype, shape=shape)
        for name, (dtype, shape) in zip("abcde", shapes, strict=True)
    ]
    plan = plan_buckets(parameters, bucket_bytes=16)
    assert [[p.name for p in bucket] for bucket in plan] == [["a", "b"], ["c"], ["d"], ["e"]]
    assert [sum(map(parameter_bytes, bucket)) for bucket in plan] == [12, 4, 18, 2]
    packed = pack_bucket([torch.tensor([1.0, -2.0]), torch.tensor([0.5])]).numpy().tobytes()
    assert packed.hex(" ", 4) == "0000803f 000000c0 0000003f"
    packed = pack_bucket([torch.tensor([1.0, 0.5]).bfloat16(), torch.tensor(-1.0).bfloat16()])
    assert packed.numpy().tobytes().hex(" ", 2) == "803f 003f 80bf"
