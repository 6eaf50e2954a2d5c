"""A gateway in the test's event loop, with the demo's model, and volunteers without a server of their own."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.volunteers.cheats import Cheat
from contracts.channel import InitWeightChannelRequest
from contracts.commitments import commit
from contracts.draws import uniform
from contracts.inference import SamplingParameters, TokenDelta
from extensions.stored_weights.store.signing import SigningKey
from extensions.volunteers.gateway.engine import VolunteersEngine
from extensions.volunteers.gateway.options import GatewayOptions
from extensions.volunteers.gateway.registry import Registry
from extensions.volunteers.gateway.serving import gateway_of
from extensions.volunteers.join.gateway_client import GatewayClient
from extensions.volunteers.link import new_link
from extensions.volunteers.messages import Made, Member, Task, Weights
from pipelinerl.clients.http_session import open_session
from pipelinerl.paths import ROOT
from tests.limits import HANG_S

MODEL = str(ROOT / "extensions" / "demo" / "checkpoints" / "sums")
PROMPTS = [[3, 22, 225, 15, 225, 23, 225, 33, 4], [3, 26, 23, 225, 17, 225, 25, 22, 225, 33, 4]]
END = 1


def demo_model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


def other_weights(model: PreTrainedModel, scale: float = 0.05) -> PreTrainedModel:
    """Returns a copy whose weights are one step away."""
    torch.manual_seed(0)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(scale * parameter.std() * torch.randn_like(parameter))
    return other


def weights(version: int) -> Weights:
    return Weights(version, "0" * 64)


class Sampler:
    """Samples by the rule of prescribed draws, token by token, one sequence at a time."""

    def __init__(self, model: PreTrainedModel, judge: PreTrainedModel | None = None):
        self._model = model
        self._judge = judge or model  # whose log-probabilities are told

    async def __call__(self, task: Task) -> list[Made]:
        return [self._made(member, task) for member in task.members]

    @torch.inference_mode()
    def _made(self, member: Member, task: Task) -> Made:
        ids: list[int] = []
        while len(ids) < task.max_tokens and ids[-1:] != [END]:
            log_p = self._log_p(self._model, member.prompt + ids, task.temperature)[-1]
            if task.temperature == 0:
                ids.append(int(log_p.argmax()))
            else:
                cdf = log_p.exp().cumsum(-1, dtype=torch.float64)
                number = uniform(bytes.fromhex(member.key), len(ids))
                ids.append(int(torch.searchsorted(cdf, number * cdf[-1:], right=True)))
        return self.told(member.prompt, ids, task.temperature)

    @torch.inference_mode()
    def told(self, prompt: list[int], ids: list[int], temperature: float) -> Made:
        """Returns a completion with the judge's log-probabilities, and the model's own commitments."""
        log_p = self._log_p(self._judge, prompt + ids, temperature)[len(prompt) - 1 : -1]
        logprobs = log_p.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
        states: list[torch.Tensor] = []
        with self._model.lm_head.register_forward_pre_hook(lambda _, given: states.append(given[0][0])):
            self._model(input_ids=torch.tensor([prompt + ids]), use_cache=False)
        proofs = commit(states[0][len(prompt) - 1 : -1].float().numpy())
        return Made(ids, logprobs, "stop" if ids[-1] == END else "length", proofs)

    @staticmethod
    def _log_p(model: PreTrainedModel, ids: list[int], temperature: float) -> torch.Tensor:
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
        return (logits / (temperature or 1.0)).log_softmax(-1)


class RunningGateway:
    """A gateway that serves version 1 of the run `run`."""

    def __init__(self, engine: VolunteersEngine, options: GatewayOptions, session: Any):
        self.engine = engine
        self.pool = engine.pool
        self.registry: Registry = engine.pool.registry
        self.state = options.state
        self._options = options
        self._session = session
        self._asked: list[asyncio.Task] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.place['port']}"

    @property
    def place(self) -> dict:
        return json.loads((self.state / "gateway.json").read_text())

    def invite(self, **changes: Any) -> str:
        """Returns the secret of a new invite."""
        link = new_link(self.url, self.place["public_key"])
        self.registry.invite(link.secret, **{"label": "ana", "uses": 1, "days": 1} | changes)
        return link.secret

    async def client(
        self, name: str = "ana", secret: str | None = None, kind: type[GatewayClient] = GatewayClient
    ) -> GatewayClient:
        """Returns a registered volunteer."""
        key = SigningKey.load_or_create(self.state / f"{name}.volunteer")
        client = kind(self._session, self.url, self.place["public_key"], key)
        await client.run()
        await client.register(secret or self.invite(label=name), "test", "cpu")
        return client

    def want(self, count: int = 4, max_tokens: int = 16, temperature: float = 1.0) -> list[asyncio.Task]:
        """Asks for completions as the run does, with the keys 0, 1, ... Returns what waits for each."""
        sampling = [
            SamplingParameters(max_tokens, temperature, draw_key=number.to_bytes(32, "little"))
            for number in range(count)
        ]
        asked = [
            asyncio.create_task(self._one(PROMPTS[number % 2], each)) for number, each in enumerate(sampling)
        ]
        self._asked += asked
        return asked

    async def _one(self, prompt: list[int], sampling: SamplingParameters) -> TokenDelta:
        return [delta async for delta in self.engine.generate(prompt, sampling)][-1]

    async def task(self, client: GatewayClient, room: int = 16) -> Task:
        granted = await client.ask(self.pool.run, self.pool.weights.version, room)
        assert granted.task is not None
        return granted.task

    async def deliver(self, client: GatewayClient, sample: Sampler, cheat: Cheat | None = None) -> Task:
        """Makes one task, by a cheat if there is one. Raises RefusedError."""
        task = await self.task(client)
        made = await (cheat(task, sample) if cheat else sample(task))
        await client.upload(task.task, made)
        return task

    async def close(self) -> None:
        for asked in self._asked:
            asked.cancel()


@asynccontextmanager
async def gateway(
    state: Path, model: PreTrainedModel | None = None, off: Collection[str] = (), **changes: Any
) -> AsyncIterator[RunningGateway]:
    """Yields a gateway. model: its weights; None for those of the demo. changes: of its options."""
    options = GatewayOptions(
        **{
            "model": MODEL, "dtype": "float32", "device": "cpu", "state": state, "public_host": "127.0.0.1",
            "public_port": 0, "public_url": None, "public_sources": [], "certificate": None, "key": None,
            "behind_proxy": None, "behind": 1, "task_size": 16, "uploads": 64, "request_timeout_s": HANG_S,
            "volunteer_dtype": "float32", "require": None, "observe": False,
        } | changes
    )  # fmt: skip
    engine = gateway_of(options, tuple(off), lambda: 0.0)  # no time passes
    await engine.start(0)
    served = model or demo_model()
    engine._models.add(1, dict(served.named_parameters()))
    key = SigningKey.load_or_create(state / "weights.key")
    engine.channel_joined(
        InitWeightChannelRequest(
            run="run", epoch=1, kind="relay", sources=["http://127.0.0.1:1"], public_keys=[key.public]
        )
    )
    await engine.pool.begin_run("run")
    await engine.pool.serve(weights(1), [1])
    async with open_session(None) as session:
        running = RunningGateway(engine, options, session)
        try:
            yield running
        finally:
            await running.close()
            await engine.close()
