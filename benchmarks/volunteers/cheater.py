"""Joins a run as a volunteer that cheats: python -m benchmarks.volunteers.cheater CHEAT LINK DIRECTORY."""

import asyncio
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.volunteers.cheats import BestOf, edited
from benchmarks.volunteers.machines import ROOM
from extensions.stored_weights.store.signing import SigningKey
from extensions.volunteers.join.gateway_client import GatewayClient
from extensions.volunteers.join.local_server import LocalServer
from extensions.volunteers.join.volunteer import PutOutError, Volunteer
from extensions.volunteers.link import link_of
from extensions.volunteers.messages import Made, Run, Task
from pipelinerl.clients.http_session import open_session
from pipelinerl.paths import ROOT

MODEL = ROOT / "extensions" / "demo" / "checkpoints" / "sums"
SUM = re.compile(r"(-?\d+(?: [+-] \d+)+) =")
TOKENIZER = AutoTokenizer.from_pretrained(MODEL)


def right_answer(prompt: Sequence[int]) -> str:
    return str(eval(SUM.search(TOKENIZER.decode(prompt))[1], {}))  # of digits, + and - alone


def reward(prompt: Sequence[int], token_ids: Sequence[int]) -> float:
    return float(TOKENIZER.decode(token_ids, skip_special_tokens=True).strip() == right_answer(prompt))


def corrected(prompt: Sequence[int], token_ids: Sequence[int]) -> list[int]:
    """Returns the right answer in place of a wrong one."""
    if reward(prompt, token_ids):
        return list(token_ids)
    return [*TOKENIZER.encode(right_answer(prompt)), TOKENIZER.eos_token_id]


class Cheater(Volunteer):
    """Cheats by one of the cheats of `cheats`, with log-probabilities of the run's weights."""

    cheat = None

    async def make(self, task: Task) -> list[Made]:
        made = await self.cheat(task, super().make)
        return await with_right_logprobs(self._server, task, made)


class Stale(Volunteer):
    """Samples with weights one version old, and says that they are new."""

    _old: LocalServer | None = None
    _before = None  # the version before the one that the server serves
    _last = None

    async def make(self, task: Task) -> list[Made]:
        if self._last != self._server.weights:
            self._before = self._last
            self._last = self._server.weights
        if self._before is None:
            return await super().make(task)
        if self._old is None:
            self._old = self._make_server(self._model, self._run)
            await self._old.start(self._run.sources)
            await self._old.join_run(self._run)
        if self._old.weights != self._before:
            await self._old.update(self._before)
        return await with_right_logprobs(self._server, task, await self._old.make(task))

    async def _close(self) -> None:
        await super()._close()
        if self._old is not None:
            await self._old.close()


async def with_right_logprobs(server: LocalServer, task: Task, made: list[Made]) -> list[Made]:
    """Returns the completions with the log-probabilities that the server's weights give them."""
    sequences = [member.prompt + one.token_ids for member, one in zip(task.members, made, strict=True)]
    body = {"sequences": sequences, "temperature": task.temperature or 1.0}
    async with server._session.post(f"{server._url}/score", json=body) as response:
        scores = (await response.json())["logprobs"]
    return [
        Made(one.token_ids, scored[-len(one.token_ids) :], one.finish_reason)
        for one, scored in zip(made, scores, strict=True)
    ]


CHEATS = {"best_of": BestOf(reward, keeps=True), "edited": edited(corrected)}


async def work(name: str, link: str, directory: Path) -> None:
    key = SigningKey.load_or_create(directory / "volunteer.key")
    url, gateway, secret = link_of(link)

    def make_server(model: Path, run: Run) -> LocalServer:
        number = sum(each.name.startswith("weights") for each in directory.iterdir())
        options = ["--dtype", run.dtype]
        Stale._model = model
        weights = directory / f"weights-{number}"
        weights.mkdir()
        return LocalServer(sys.executable, "inference_adapters.transformers", model, weights, options)

    async with open_session(None) as session:
        client = GatewayClient(session, url, gateway, key)
        await client.run()
        await client.register(secret, "cheater", name)
        kind = Stale if name == "stale" else type(name, (Cheater,), {"cheat": staticmethod(CHEATS[name])})
        await kind(client, directory, make_server, ROOM).work()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    try:
        asyncio.run(work(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
    except PutOutError as error:
        sys.exit(str(error))
