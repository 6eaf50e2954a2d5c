"""Measures how long an update of a vLLM server pauses generation, and the parts of that time."""

import asyncio
import contextlib
import statistics
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from benchmarks.ratios import ratio_of_medians
from benchmarks.raw_broadcast import raw_broadcast
from benchmarks.vllm_servers import ENVIRONMENT, PYTHON
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.tiny_model import make_tiny_model
from pipelinerl.paths import ROOT

HOW = ("paused", "staged")
BUCKET_BYTES = 2**26
PATIENCE_S = 60
WARM_UP = 3


def make_model(path: Path, megabytes: int) -> str:
    """Writes a Qwen2 of about `megabytes` in float32, with the tiny model's tokenizer. Returns its path."""
    make_tiny_model(path)
    layers = max(1, round(megabytes / 12 / 4))  # of 12 M parameters each
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


async def pauses(url: str, model: str, updates: int) -> str:
    """Returns a report on the pauses of `updates` updates per receive mode.

    They alternate with raw broadcasts and reloads.
    """
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    weights = {name: parameter.detach() for name, parameter in loaded.named_parameters()}
    size = sum(tensor.nbytes for tensor in weights.values())
    found: dict[str, list[float]] = {how: [] for how in (*HOW, "broadcast", "reload")}
    timeout = aiohttp.ClientTimeout(total=None)
    with raw_broadcast(size, BUCKET_BYTES, fresh=True) as broadcast, _own_reload(model) as reload:
        async with aiohttp.ClientSession(timeout=timeout) as http:
            trainer = TrainerPeer([Server(http, url, None)], _tied(loaded), Settings(timeout_s=PATIENCE_S))
            await trainer.join()
            for number in range(WARM_UP + updates):
                for i, how in enumerate(HOW):
                    found[how].append(await _pause(trainer, weights, 2 * number + i, how))
                found["broadcast"].append(await asyncio.to_thread(broadcast))
                found["reload"].append(await asyncio.to_thread(reload))
            trainer.leave()
    return _report(size, {name: seconds[WARM_UP:] for name, seconds in found.items()})


def _tied(model: torch.nn.Module) -> dict[str, str]:
    return dict(model.all_tied_weights_keys)


async def _pause(trainer: TrainerPeer, weights: dict, version: int, receive: str) -> float:
    """Returns the seconds for which generation was paused, with two requests in flight."""
    (server,) = trainer.servers
    running = [
        asyncio.create_task(server.complete([5, 6, 7], 1500, temperature=1, ignore_eos=True))
        for _ in range(2)
    ]
    while (await server.contract()).process.running < len(running):
        await asyncio.sleep(0.01)
    await trainer.publish(version, weights, receive=receive, bucket_bytes=BUCKET_BYTES)
    _, status = await server.get(f"/weight_update/{version}")
    assert not any(task.done() for task in running)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return status["paused_s"]


def _report(size: int, found: dict[str, list[float]]) -> str:
    parts = [a + b for a, b in zip(found["broadcast"], found["reload"], strict=True)]
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    lines = [
        f"{size / 2**20:.0f} MiB, medians of {len(parts)}: raw gloo broadcast {medians['broadcast']:.3f} s, "
        f"vLLM's own reload {medians['reload']:.3f} s"
    ]
    for how in HOW:
        lines.append(f"{how}: pause {medians[how]:.3f} s, {ratio_of_medians(found[how], parts)} of their sum")
    return "\n".join(lines)


@contextlib.contextmanager
def _own_reload(model: str) -> Iterator[Callable[[], float]]:
    """Yields a function that makes another vLLM reload its weights, and returns the seconds."""
    command = [PYTHON, "-m", "benchmarks.vllm_reload", model]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def reload() -> float:
        process.stdin.write("\n")
        process.stdin.flush()
        while not (line := process.stdout.readline()).startswith("reloaded in "):
            if not line:
                raise RuntimeError(f"{command} ended")
        return float(line.split()[-1])

    yield reload
    process.stdin.close()
    process.wait()
