"""The trainer of docs/inference-contract.md, which imports nothing of the project, trains servers at once."""

import ast
import asyncio
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch

from contracts.inference import ScoreRequest
from inference_adapters.scripted import EMBED, HEAD, ScriptedEngine

ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / "examples" / "own_trainer.py"


@pytest.fixture
def servers():
    command = (sys.executable, "-m", "inference_adapters.scripted", "--port", "0")
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    yield [process.stdout.readline().split()[-1] for process in processes]
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def test_a_trainer_of_ones_own_puts_its_weights_into_two_servers(servers, tmp_path):
    weights = ScriptedEngine.initial_weights(seed=7)
    torch.save(weights | {HEAD: weights[EMBED]}, tmp_path / "weights.pt")  # one memory, two names
    command = (sys.executable, TRAINER, tmp_path / "weights.pt", *servers)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[{'version': 1, 'start': 0, ") == len(servers)

    sequences = [[5, 60, 7, 30, 12], [90, 3]]
    expected = asyncio.run(ScriptedEngine(seed=7).score(ScoreRequest(sequences=sequences)))
    for url in servers:
        body = json.dumps({"sequences": sequences}).encode()
        asked = urllib.request.Request(f"{url}/score", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            scored = json.load(answer)
        assert scored["version"] == 1
        for found, wanted in zip(scored["logprobs"], expected.logprobs, strict=True):
            assert found == pytest.approx(wanted, abs=1e-5)


def test_the_trainer_imports_nothing_of_the_project():
    imports = [node for node in ast.walk(ast.parse(TRAINER.read_text())) if isinstance(node, ast.Import)]
    names = {alias.name.partition(".")[0] for node in imports for alias in node.names}
    assert names <= {*sys.stdlib_module_names, "torch"}


def test_the_contract_quotes_the_trainer_whole():
    assert f"```python\n{TRAINER.read_text()}```" in (ROOT / "docs" / "inference-contract.md").read_text()
