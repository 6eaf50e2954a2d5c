"""A program that does at random what agents do: it branches, asks again, edits, and leaves connections.

`python -m tests.extensions.agents.random_agent SESSIONS` runs it against the transformers adapter, whose
weights are updated all the while, and checks each token.
"""

import asyncio
import itertools
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

import aiohttp
import numpy as np

from contracts.conformance.inference.reference import Reference
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.tiny_model import make_tiny_model
from contracts.records import Completion
from extensions.agents.endpoint.session import Session
from pipelinerl.batching.sequences import training_sequences
from tests.builders import rollout
from tests.extensions.agents.served_sessions import HELD, Sessions, sessions_at, tokens_of
from tests.inference_adapters.servers import serving, wait_ready
from tests.limits import HANG_S

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("add", "look")]
TURNS = 6
AT_ONCE = 16
UPDATE_EVERY = 10  # answers
SEEDS = 4  # different weights
TOKENS = (1, 4, 12)
TOLERANCE = 1e-4  # nats


class RandomAgent:
    """One session of random requests. delivered: the answers that it has read."""

    def __init__(self, http: aiohttp.ClientSession, sessions: Sessions, url: str, key: str, seed: int):
        self._http = http
        self._proxy = sessions.proxy
        self._url = f"{url}/s/{key}/v1/chat/completions"
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._known: list[tuple[list[dict], list[dict] | None]] = []  # conversations that end with an answer
        self.delivered: list[dict] = []

    async def run(self) -> None:
        await self._ask([self._said()], self._tools())
        for _ in range(TURNS - 1):
            step = self._random.choice(
                [self._go_on, self._go_on, self._branch, self._retry, self._edit, self._parallel, self._leave]
            )
            await step()

    def _said(self) -> dict:
        return {"role": "user", "content": f"{next(self._numbers)} {self._random.choice('abc')}"}

    def _tools(self) -> list[dict] | None:
        return self._random.choice([None, TOOLS, TOOLS[:1]])

    async def _go_on(self) -> None:
        messages, tools = self._known[-1]
        await self._ask([*messages, self._said()], tools)

    async def _branch(self) -> None:
        messages, tools = self._random.choice(self._known)
        tools = self._random.choice([tools, tools, self._tools()])
        await self._ask([*messages, self._said()], tools)

    async def _retry(self) -> None:
        messages, tools = self._random.choice(self._known)
        await self._ask(messages[:-1], tools)

    async def _edit(self) -> None:
        messages, tools = self._random.choice(self._known)
        place = self._random.randrange(len(messages))
        edited = [*messages[:place], messages[place] | {"content": "edited"}, *messages[place + 1 :]]
        compacted = [{"role": "system", "content": "so far: much"}]
        await self._ask([*self._random.choice([edited, compacted]), self._said()], tools)

    async def _parallel(self) -> None:
        await asyncio.gather(self._go_on(), self._branch(), self._retry())

    async def _leave(self) -> None:
        """Leaves while the answer is on its way, which nobody then reads."""
        messages, tools = self._known[-1]
        stop = f"{HELD}{self._url} {next(self._numbers)}"
        asked = asyncio.create_task(self._ask([*messages, self._said()], tools, stop))
        await self._proxy.held[stop].wait()
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked

    async def _ask(self, messages: list[dict], tools: list[dict] | None, stop: str = "") -> None:
        streams = self._random.random() < 0.5
        body = {"model": "any", "messages": messages, "max_tokens": self._random.choice(TOKENS)}
        body |= {"stream": streams} | ({"tools": tools} if tools else {}) | ({"stop": stop} if stop else {})
        async with self._http.post(self._url, json=body) as answer:
            assert answer.status == 200, await answer.text()
            text = await answer.text()
        message = _streamed(text) if streams else json.loads(text)["choices"][0]["message"]
        self.delivered.append(message)
        shown = message if self._random.random() < 0.8 else message | {"content": f"{message['content']} \n"}
        self._known.append(([*messages, shown], tools))


def _streamed(text: str) -> dict:
    """Returns the message in the events of a stream, which must have ended."""
    *events, last = text.strip().split("\n\n")
    assert last == "data: [DONE]"
    message: dict = {"role": "assistant", "content": ""}
    for event in events:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            message["content"] += choice["delta"].get("content") or ""
    return message


async def tried(url: str, model: str, count: int, renders: bool) -> list[tuple[Session, RandomAgent]]:
    """Runs sessions against a server, updates its weights meanwhile, and checks what was recorded."""
    reference = Reference(model)
    free = asyncio.Semaphore(AT_ONCE)
    ran: list[tuple[Session, RandomAgent]] = []
    async with sessions_at(url, model) as sessions, aiohttp.ClientSession() as http:
        trainer = TrainerPeer([Server(http, url, None)], reference.tied, Settings(timeout_s=HANG_S))

        async def one(number: int) -> None:
            async with free:
                session, key = sessions.begin(f"attempt {number}", renders)
                agent = RandomAgent(http, sessions, sessions.endpoint.url, key, number)
                await agent.run()
                await sessions.endpoint.end([key])
                ran.append((session, agent))

        try:
            await trainer.join()
            trainer.kv_cache = "recompute"  # so that scores are those of the versions
            running = asyncio.gather(*(one(number) for number in range(count)))
            for version in itertools.count(1):
                moved = asyncio.create_task(sessions.proxy.answered(UPDATE_EVERY))
                await asyncio.wait([running, moved], return_when=asyncio.FIRST_COMPLETED)
                moved.cancel()
                if running.done():
                    break
                await trainer.publish(version, reference.weights(version % SEEDS))
            await running
        finally:
            trainer.leave()
        check_log(sessions, [session for session, _ in ran])
    for session, agent in ran:
        check_session(session, agent, reference.tokenizer.decode)
        if not renders:
            check_prompts(session)
    check_scores(reference, [each for session, _ in ran for each in session.trained(path_only=False)])
    return ran


def check_log(sessions: Sessions, ended: list[Session]) -> None:
    """Asserts that what is trained on is what the server answered: prompts, tokens, numbers and versions."""
    recorded = Counter(tokens_of(each) for session in ended for each in session.trained(path_only=False))
    assert recorded == Counter(sessions.proxy.answers)


def check_scores(reference: Reference, completions: Iterable[Completion]) -> None:
    """Asserts that log-probabilities are those of the weights whose version the tokens have."""
    of_one = [each for each in completions if len(each.spans) == 1 and each.spans[0].version]
    for each in sorted(of_one, key=lambda each: each.spans[0].version % SEEDS):
        weights = reference.weights(each.spans[0].version % SEEDS)
        scored = reference.logprobs(weights, each.prompt_token_ids.tolist(), each.token_ids.tolist())
        assert np.allclose(scored, each.logprobs, atol=TOLERANCE)


def check_prompts(session: Session) -> None:
    """Asserts that prompts go on from the sampled tokens, also from those that no text spells."""
    for node in session.history.nodes:
        if node.before:
            before = node.before.answer.completion
            ids = np.concatenate([before.prompt_token_ids, before.token_ids])
            assert np.array_equal(node.answer.completion.prompt_token_ids[: len(ids)], ids)


def check_session(session: Session, agent: RandomAgent, decode) -> None:
    """Asserts that each answer that was read is recorded, and is in the loss."""
    completions = session.trained(path_only=False)
    texts = Counter(decode(each.token_ids, skip_special_tokens=True) for each in completions)
    assert texts == Counter(message["content"] for message in agent.delivered)
    in_loss_once(session)


def in_loss_once(session: Session) -> None:
    """Asserts that each token of a session is once in the loss, as it was sampled."""
    completions = session.trained(path_only=False)
    whole = rollout(0, completions=completions)
    in_loss: Counter[tuple] = Counter()
    for sequence in training_sequences(whole, [1.0] * len(completions)):
        for place in np.flatnonzero(sequence.loss_mask):
            prefix = sequence.token_ids[: place + 1].astype(np.int32).tobytes()
            in_loss[prefix, float(sequence.behaviour_logprobs[place]), int(sequence.versions[place])] += 1
    assert in_loss == Counter(expected(completions))


def expected(completions: Iterable[Completion]) -> Iterable[tuple]:
    """Yields each sampled token: with all before it, its log-probability, and its version."""
    for each in completions:
        ids = np.concatenate([each.prompt_token_ids, each.token_ids]).astype(np.int32)
        begin = len(each.prompt_token_ids)
        versions = [span.version for span in each.spans for _ in range(span.start, span.end)]
        for place, version in enumerate(versions):
            yield ids[: begin + place + 1].tobytes(), float(each.logprobs[place]), version


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = make_tiny_model(directory)
        for renders in (False, True):
            with serving("inference_adapters.transformers", "--model", model) as server:
                wait_ready(server.url)
                ran = asyncio.run(tried(server.url, model, count, renders))
            counts = sum((session.counts for session, _ in ran), Counter())
            spans = [len(each.spans) for session, _ in ran for each in session.trained(path_only=False)]
            mixed = sum(number > 1 for number in spans)
            name = "rendered" if renders else "sampled"
            print(f"{name}: {count} sessions, {dict(counts)}, {mixed} answers of several versions")


if __name__ == "__main__":
    main(int(sys.argv[1]))
