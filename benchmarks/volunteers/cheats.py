"""Cheats of volunteers: each changes an honest volunteer's completions, or makes others.

A cheat gets a task and `make`, which samples it honestly with the volunteer's own server.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from extensions.volunteers.messages import Made, Task

Make = Callable[[Task], Awaitable[list[Made]]]
Reward = Callable[[Sequence[int], Sequence[int]], float]  # of prompt and completion


class Cheat(Protocol):
    async def __call__(self, task: Task, make: Make) -> list[Made]: ...


def with_other_keys(task: Task) -> Task:
    """Returns the task with random numbers of one's own."""
    members = [msgspec.structs.replace(member, key=random.randbytes(32).hex()) for member in task.members]
    return msgspec.structs.replace(task, members=members)


class BestOf:
    """Takes the best of `n` by reward. keeps: the prescribed one, if nothing is better."""

    def __init__(self, reward: Reward, n: int = 4, keeps: bool = False):
        self._reward = reward
        self._n = n
        self._keeps = keeps

    async def __call__(self, task: Task, make: Make) -> list[Made]:
        drawn = [await make(with_other_keys(task)) for _ in range(self._n - self._keeps)]
        if self._keeps:
            drawn.insert(0, await make(task))
        rows = zip(task.members, zip(*drawn, strict=True), strict=True)
        return [
            max(made, key=lambda one: self._reward(member.prompt, one.token_ids)) for member, made in rows
        ]


async def own_noise(task: Task, make: Make) -> list[Made]:
    """Samples with random numbers of its own."""
    return await make(with_other_keys(task))


async def greedy(task: Task, make: Make) -> list[Made]:
    """Takes the likeliest tokens."""
    return await make(msgspec.structs.replace(task, temperature=0.0))


async def cooler(task: Task, make: Make) -> list[Made]:
    """Samples at a lower temperature."""
    return await make(msgspec.structs.replace(task, temperature=0.7 * task.temperature))


def edited(change: Callable[[Sequence[int], Sequence[int]], list[int]]) -> Cheat:
    """Replaces answers, and keeps the end. change: returns the new ids of a completion."""

    async def cheat(task: Task, make: Make) -> list[Made]:
        made = await make(task)
        ids = [change(m.prompt, one.token_ids) for m, one in zip(task.members, made, strict=True)]
        return [
            Made(new, [0.0] * len(new), one.finish_reason) if new != one.token_ids else one
            for new, one in zip(ids, made, strict=True)
        ]

    return cheat


async def hinted(task: Task, make: Make) -> list[Made]:
    """Samples with another prompt than it reports: the first ids of the prompt are left out."""
    members = [msgspec.structs.replace(member, prompt=member.prompt[1:]) for member in task.members]
    return await make(msgspec.structs.replace(task, members=members))


async def cut_short(task: Task, make: Make) -> list[Made]:
    """Leaves the last token of each completion out, and says that it ended."""
    made = await make(task)
    return [
        Made(one.token_ids[:-1] or one.token_ids, one.logprobs[:-1] or one.logprobs, one.finish_reason)
        for one in made
    ]
