"""What the vLLM adapter costs: throughput against the bare server, and an update's pause.

    make vllm-env && python -m benchmarks.vllm_adapter [--runs 15] [--megabytes 400]

Throughput: the same 64 concurrent chat completions (log-probabilities, token ids) to this adapter and to
vLLM's own server, both running, in alternating runs: the ratio of the medians, with a bootstrap interval.
Pause: how long generation stands still for an update, under load, against a raw gloo broadcast of the same
bytes plus vLLM's own reload of the same tensors (`benchmarks.vllm_reload`).
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.inference.trainer_end import TrainerEnd
from contracts.conformance.tiny_model import make_tiny_model
from contracts.weights import WeightGroup, WeightStore
from pipelinerl.jobs import ROOT, free_port

PYTHON = str(ROOT / ".venv-vllm" / "bin" / "python")
OPTIONS = ["--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(2**28)]
BARE = ["vllm.entrypoints.openai.api_server", "--logprobs-mode", "processed_logprobs"]
CONCURRENT, TOKENS = 64, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="of 64 requests, per server")
    parser.add_argument("--megabytes", type=int, default=400, help="of weights, for the pause")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny")
        with started(model, ["inference_adapters.vllm"]) as adapter, started(model, BARE) as bare:
            print(throughput(asyncio.run(alternating(adapter, bare, model, args.runs))))
        model = make_model(Path(folder) / "large", args.megabytes)
        with started(model, ["inference_adapters.vllm"]) as adapter:
            pauses = {
                receive: asyncio.run(paused(adapter, model, receive)) for receive in ("paused", "staged")
            }
        broadcast = raw_broadcast(args.megabytes * 2**20)
        command = [PYTHON, "-m", "benchmarks.vllm_reload", model]
        reload = float(
            subprocess.run(command, stdout=-1, stderr=-3, text=True, check=True).stdout.split()[-1]
        )
    print(f"{args.megabytes} MB: raw gloo broadcast {broadcast:.3f} s, vLLM's own reload {reload:.3f} s")
    for how, seconds in pauses.items():
        print(f"{how}: pause {seconds:.3f} s, {seconds / (broadcast + reload):.2f} x their sum")


@contextlib.contextmanager
def started(model: str, module: list[str]) -> Iterator[str]:
    """URL of a server that is ready."""
    port = free_port()
    command = [PYTHON, "-m", *module, "--model", model, "--port", str(port), *OPTIONS]
    variables = os.environ | {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        asyncio.run(ready(url := f"http://127.0.0.1:{port}", process))
        yield url
    finally:
        process.terminate()
        process.wait()


async def ready(url: str, process: subprocess.Popen) -> None:
    async with aiohttp.ClientSession() as http:
        while process.poll() is None:
            with contextlib.suppress(aiohttp.ClientError):
                if (await http.get(f"{url}/health")).status == 200:
                    return
            await asyncio.sleep(0.5)
    raise RuntimeError(f"{process.args} ended with status {process.returncode}")


# --- throughput -----------------------------------------------------------------------------------


async def alternating(adapter: str, bare: str, model: str, runs: int) -> dict[str, list[float]]:
    """Tokens per second of each run."""
    found: dict[str, list[float]] = {adapter: [], bare: []}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for number in range(-2, runs):  # the first two of each warm up
            for url in (adapter, bare) if number % 2 else (bare, adapter):
                began = time.perf_counter()
                await asyncio.gather(*(ask(http, url, model, i) for i in range(CONCURRENT)))
                if number >= 0:
                    found[url].append(CONCURRENT * TOKENS / (time.perf_counter() - began))
    return {"adapter": found[adapter], "bare": found[bare]}


async def ask(http: aiohttp.ClientSession, url: str, model: str, number: int) -> None:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{number} + 3 ="}],
        "max_tokens": TOKENS,
    }
    body |= {"logprobs": True, "return_token_ids": True, "ignore_eos": True, "temperature": 1}
    async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
        assert len((await answer.json())["choices"][0]["token_ids"]) == TOKENS


def throughput(found: dict[str, list[float]]) -> str:
    generator = np.random.default_rng(0)
    adapter, bare = np.array(found["adapter"]), np.array(found["bare"])
    draws = [
        np.median(generator.choice(adapter, len(adapter))) / np.median(generator.choice(bare, len(bare)))
        for _ in range(2000)
    ]
    low, high = np.quantile(draws, [0.025, 0.975])
    ratio = np.median(adapter) / np.median(bare)
    return (
        f"{len(bare)} alternating runs of {CONCURRENT} requests: adapter {np.median(adapter):.0f} tokens/s, "
        f"bare {np.median(bare):.0f}; ratio {ratio:.3f} ({low:.3f} to {high:.3f})"
    )


# --- pause ----------------------------------------------------------------------------------------


def make_model(path: Path, megabytes: int) -> str:
    """A Qwen2 of about so many megabytes in float32, with the tokenizer of the tiny one."""
    make_tiny_model(path)
    layers = max(1, round(megabytes / 12 / 4))  # of 12 M parameters
    config = Qwen2Config(
        vocab_size=97,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)
    return str(path)


async def paused(url: str, model: str, receive: str, updates: int = 5) -> float:
    """Median seconds for which generation stood still, with requests in flight."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    weights = {name: parameter.detach() for name, parameter in loaded.named_parameters()}
    tied = {"lm_head.weight": "model.embed_tokens.weight"}
    found = []
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        server = Server(http, url, None)
        trainer = TrainerEnd([server], tied, Settings(timeout_s=60))
        await trainer.join()
        busy = [asyncio.create_task(server.complete([5, 6, 7], 1500, temperature=1)) for _ in range(2)]
        for version in range(updates):
            await trainer.publish(version, weights, receive=receive, bucket_bytes=2**26)
            _, status = await server.get(f"/weight_update/{version}")
            found.append(status["paused_s"])
        for task in busy:
            task.cancel()
        trainer.leave()
    return statistics.median(found)


def raw_broadcast(size: int, times: int = 5) -> float:
    """Median seconds of one gloo broadcast to another process."""
    store = WeightStore("127.0.0.1", 0, 60)
    spawn = multiprocessing.get_context("spawn")
    other = spawn.Process(target=_receive, args=(store.port, size, times))
    other.start()
    group = store.group("raw", 2, "gloo", 60)
    buffer, found = torch.zeros(size, dtype=torch.uint8), []
    acknowledged = torch.zeros(1)
    for _ in range(times):
        began = time.perf_counter()
        group.broadcast(buffer, 60)
        group.broadcast(acknowledged, 60)
        found.append(time.perf_counter() - began)
    other.join()
    return statistics.median(found)


def own_reload(model: str) -> float:
    command = [PYTHON, "-m", "benchmarks.vllm_reload", model]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return float(ended.stdout.split()[-1])


def _receive(port: int, size: int, times: int) -> None:
    group = WeightGroup.join("127.0.0.1", port, "raw", 1, 2, "gloo", 60)
    buffer = torch.zeros(size, dtype=torch.uint8)
    for _ in range(times):
        group.broadcast(buffer, 60)
        group.broadcast(torch.zeros(1), 60)


if __name__ == "__main__":
    main()
