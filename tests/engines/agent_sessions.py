"""Agents against a real engine: random sessions with tools, and texts that end an answer."""

import asyncio
from collections import Counter

import aiohttp

from contracts.conformance.inference.reference import Reference
from tests.extensions.agents.random_agent import RandomAgent, check_log, check_session
from tests.extensions.agents.served_sessions import sessions_at

SESSIONS = 6


def agents_are_recorded(url: str, model: str, token: str) -> None:
    """Asserts that each token of the sessions is in the loss once, and that answers end at texts."""
    asyncio.run(_recorded(url, model, token))


async def _recorded(url: str, model: str, token: str) -> None:
    decode = Reference(model).tokenizer.decode
    async with sessions_at(url, model, token=token, seed=None) as sessions, aiohttp.ClientSession() as http:
        begun = [sessions.begin(f"attempt {number}") for number in range(SESSIONS)]
        agents = [
            RandomAgent(http, sessions, sessions.endpoint.url, key, number)
            for number, (_, key) in enumerate(begun)
        ]
        await asyncio.gather(*(agent.run() for agent in agents))
        await sessions.endpoint.end(key for _, key in begun)
        check_log(sessions, [session for session, _ in begun])
        await _ends_at_a_text(http, sessions, decode)
    for (session, _), agent in zip(begun, agents, strict=True):
        check_session(session, agent, decode)
    assert sum((session.counts for session, _ in begun), Counter())["continued"] > SESSIONS


async def _ends_at_a_text(http: aiohttp.ClientSession, sessions, decode) -> None:
    """Asserts that an answer ends before the first of some texts, and that its tokens hold it."""
    session, key = sessions.begin("an attempt with a text")
    path = f"{sessions.endpoint.url}/s/{key}/v1/chat/completions"
    messages = [{"role": "user", "content": "say something"}]
    stops = list("aeio")
    for _ in range(SESSIONS):
        body = {"messages": messages, "max_tokens": 30, "stop": stops}
        async with http.post(path, json=body) as answer:
            said = (await answer.json())["choices"][0]
        sampled = decode(session.last.completion.token_ids, skip_special_tokens=True)
        ends = [sampled.index(stop) for stop in stops if stop in sampled]
        assert said["message"]["content"] == sampled[: min(ends, default=None)]
    await sessions.endpoint.end([key])
