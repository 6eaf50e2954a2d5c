"""The loop in one process and one server: sample, advantage, objective, backward, step, publish.

`python examples/minimal_loop.py` teaches the demo model sums, on a CPU in a minute or two, and prints
held-out success before and after. A run (launch.py) has the same parts and samples while it trains.
"""

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from secrets import token_hex

import aiohttp
import numpy as np

from contracts.inference import InitProcessGroupRequest, WeightUpdateRequest
from contracts.records import Rollout
from contracts.support.die_with_parent import die_with_parent
from contracts.trainer import OptimizerSpec, PackedBatch, TrainerWorker, WorkerSpec
from contracts.weights import RendezvousStore, WeightGroup, send_weights
from extensions.demo.registry import Demo
from pipelinerl.advantages import LeaveOneOut
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.clients.completions import Asked, Sampling, complete
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.server_control import ServerControl
from pipelinerl.objectives.reinforce import Reinforce
from trainer_adapters.fsdp import FSDPTrainer

MODEL = str(Demo("sums").directory)
SUMS = [(a, b) for a in range(10, 100) for b in range(10, 100)]
STEPS = 40
PROBLEMS = 16  # of a step
GROUP_SIZE = 8  # rollouts of each problem
OPTIMIZER = OptimizerSpec(lr=5e-4, decay_steps=STEPS)
TIMEOUT_S = 60.0
RUN = {"run": token_hex(8), "epoch": 1, "timeout_s": TIMEOUT_S}


async def main() -> None:
    Demo("sums").make()
    random.shuffle(SUMS)  # the first 256 are held out
    worker = FSDPTrainer()
    worker.init_worker(WorkerSpec(model_path=MODEL, optimizer=OPTIMIZER, master_port=0))
    async with open_session(token=None) as session, inference_server(session) as server:
        group = await join(server)
        before = await asyncio.gather(*[attempt(server, p) for p in SUMS[:256]])
        print(f"held-out success before: {np.mean([rollout.reward for rollout in before]):.2f}", flush=True)
        for step in range(STEPS):
            problems = [p for p in random.sample(SUMS[256:], PROBLEMS) for _ in range(GROUP_SIZE)]
            rollouts = await asyncio.gather(*[attempt(server, p) for p in problems])
            rewards = np.array([rollout.reward for rollout in rollouts])  # [problems * group]
            advantages = np.concatenate([LeaveOneOut()(own) for own in np.split(rewards, PROBLEMS)])
            sequences = []
            for rollout, advantage in zip(rollouts, advantages, strict=True):
                sequences += training_sequences(rollout, [advantage])
            batch = PackedBatch.pack(sequences, step)
            batch = replace(batch, loss_weights=batch.loss_mask / len(rollouts))  # [T]
            scores = worker.forward(batch)
            loss, _ = Reinforce(max_importance_weight=5.0)(scores, batch)
            worker.backward(loss)
            worker.step()
            await publish(worker, step + 1, group, server)
            print(f"step {step + 1}: {rewards.mean():.2f} of the answers were right", flush=True)
        after = await asyncio.gather(*[attempt(server, p) for p in SUMS[:256]])
        print(f"held-out success after: {np.mean([rollout.reward for rollout in after]):.2f}")
    worker.close()


async def attempt(server: ServerControl, problem: tuple[int, int]) -> Rollout:
    """Returns one answer to a sum, sampled at temperature 1, with the reward 1 if it is right."""
    a, b = problem
    prompt = [{"role": "user", "content": f"{a} + {b} ="}]
    asked = Asked(prompt, Sampling(MODEL, temperature=1.0, max_tokens=8))
    async with open_session(token=None) as session:
        answer = await complete(session, server.url, asked)
    names = {"run": RUN["run"], "rollout_id": token_hex(8), "problem_id": f"{a} + {b}", "domain": "sums"}
    reward = float(answer.text.strip() == str(a + b))
    return Rollout(**names, group_id=100 * a + b, completions=[answer.completion], reward=reward)


@asynccontextmanager
async def inference_server(session: aiohttp.ClientSession) -> AsyncIterator[ServerControl]:
    """Yields the control of a server that is ready, and ends the server afterwards."""
    command = [sys.executable, "-m", "inference_adapters.transformers", "--model", MODEL, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent) as process:
        try:
            server = ServerControl(session, process.stdout.readline().removeprefix("listening at ").strip())
            while await server.health_status() != "ready":
                await asyncio.sleep(0.1)
            yield server
        finally:
            process.terminate()


async def join(server: ServerControl) -> WeightGroup:
    """Returns the weight group of this process, which is rank 0, and the server."""
    store = RendezvousStore("127.0.0.1", 0, TIMEOUT_S)
    meeting = {"group_name": "minimal", "master_address": store.address, "master_port": store.port}
    request = InitProcessGroupRequest(**RUN, **meeting, backend="gloo", rank_offset=1, world_size=2)
    forming = asyncio.to_thread(store.group, request.group_name, 2, "gloo", TIMEOUT_S)
    group, _ = await asyncio.gather(forming, server.init_process_group(request))
    return group


async def publish(worker: TrainerWorker, version: int, group: WeightGroup, server: ServerControl) -> None:
    """Sends the worker's weights to the server, and waits until it samples from them."""
    manifest = worker.weight_manifest("float32")
    size = manifest.total_bytes  # all in one bucket
    content = {"parameters": list(manifest.parameters), "tied": manifest.tied, "bucket_bytes": size}
    await server.request_weight_update(WeightUpdateRequest(**RUN, **content, version=version))
    send_weights(group, manifest, worker.gather_weights(), size, TIMEOUT_S)
    assert (await server.weight_update(version, wait_s=TIMEOUT_S)).state == "live"


if __name__ == "__main__":
    asyncio.run(main())
