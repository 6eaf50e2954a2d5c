"""Formats the history of one group as text, for `extensions.viewer.records group` and the viewer."""

import time
from collections.abc import Iterator
from typing import NamedTuple

from tokenizers import Tokenizer

from contracts.records import DropReason, Resumed, Rollout, Settled, Started
from contracts.support.messages import printable
from extensions.viewer.records.group_history import GroupHistory, Incarnation
from extensions.viewer.records.group_words import (
    describe_answer,
    describe_drop,
    describe_end,
    describe_left_out,
    describe_prompt,
    describe_settled,
    describe_share,
)

TIME_COLUMN = 14  # characters
NO_TIME = 0.0  # for events whose time is not recorded


class Line(NamedTuple):
    at: float  # unix seconds, or NO_TIME
    text: str


def story_lines(history: GroupHistory, tokenizer: Tokenizer | None = None) -> Iterator[str]:
    """Yields the lines of a group's history. The group must have started.

    tokenizer: with it, prompt and answers are told, too.
    """
    if history.began:
        began = time.strftime("%F %T", time.localtime(history.began))
        yield f"group {history.group_id}; seconds since the run began at {began}"
    else:
        yield f"group {history.group_id}; its records have no times"
    for line in _Story(history, tokenizer).lines():
        seconds = f"{line.at - history.began:+.3f} s" if line.at else ""
        yield printable(f"{seconds:>{TIME_COLUMN}}  {line.text}")


class _Story:
    def __init__(self, history: GroupHistory, tokenizer: Tokenizer | None):
        self._tokenizer = tokenizer
        self._group = history.group_id
        self._started = history.started
        self._incarnations = history.incarnations
        place = history.of_same_draw.index(history.group_id)
        self._drawn_before = history.of_same_draw[:place][-1:]
        self._drawn_again = history.of_same_draw[place + 1 :][:1]
        self._rollouts: dict[str, Rollout] = {}
        self._settled: Settled | None = None
        self._is_lost = False
        self._is_redrawn = False

    def lines(self) -> Iterator[Line]:
        for incarnation in self._incarnations:
            yield from self._incarnation(incarnation)
            if incarnation.resumed and incarnation.resumed.next_group > self._group and not self._is_lost:
                yield from self._resumption(incarnation.resumed)
        if not self._settled and not self._is_lost:
            yield Line(NO_TIME, self._open)

    def _incarnation(self, incarnation: Incarnation) -> Iterator[Line]:
        if incarnation.started:
            yield Line(incarnation.started.at, self._start(incarnation.started))
        if self._tokenizer and incarnation.rollouts and not self._rollouts:
            yield Line(NO_TIME, f"  prompt: {describe_prompt(incarnation.rollouts[0], self._tokenizer)}")
        for rollout in sorted(incarnation.rollouts, key=lambda rollout: rollout.finished_at):
            self._rollouts[rollout.rollout_id] = rollout
            yield Line(rollout.finished_at, describe_end(rollout))
            if self._tokenizer:
                yield Line(NO_TIME, f"  {describe_answer(rollout, self._tokenizer)}")
        for share in incarnation.shares:
            yield from (Line(NO_TIME, text) for text in describe_share(share))
        if incarnation.packed:
            yield from (Line(NO_TIME, text) for text in self._left_out(incarnation))
        for settled in incarnation.settled:
            self._settled = settled
            yield Line(settled.at, describe_settled(settled))

    def _start(self, started: Started) -> str:
        again = f", which group {self._drawn_before[0]} had before it was lost" if self._drawn_before else ""
        members = (rollout for incarnation in self._incarnations for rollout in incarnation.rollouts)
        name = next((_problem(member) for member in members), "")
        return (
            f"{started.rollouts} rollouts of problem {started.problem}{name} are started while version "
            f"{started.version} is live: draw {started.draw} of the sampler{again}"
        )

    def _left_out(self, incarnation: Incarnation) -> Iterator[str]:
        """Yields a line for each member without a sequence in the rows of the group's step."""
        in_rows = {sequence.rollout_id for share in incarnation.shares for sequence in share.sequences}
        masked = {
            member: why for member, why in incarnation.masked.items() if member.startswith(f"{self._group}-")
        }
        members = self._rollouts.keys() | masked.keys()
        for member in sorted(members - in_rows, key=lambda member: (len(member), member)):
            yield f"  {member}: {describe_left_out(self._rollouts.get(member), masked.get(member))}"
        if unknown := self._started.rollouts - len(members | in_rows):
            yield f"  {unknown} more are in no row, and their records are deleted"

    def _resumption(self, resumed: Resumed) -> Iterator[Line]:
        changes = list(self._changes(resumed))
        nothing = "" if changes else ", which changes nothing for the group"
        yield Line(resumed.at, f"the run stops, and resumes from version {resumed.version}{nothing}")
        yield from (Line(NO_TIME, f"  {change}") for change in changes)

    def _changes(self, resumed: Resumed) -> Iterator[str]:
        made = self._settled.version if self._settled else None
        if made is not None and made > resumed.version:
            yield f"version {made} is undone, and so is what it did with the group"
            self._settled = None
        if self._group in resumed.replayed:
            yield "replayed: it is complete, so it is trained on without being sampled again"
        for reason, groups in _dropped_by(resumed).items():
            if self._group in groups:
                self._is_lost = True
                yield f"{describe_drop(reason)}; {self._recorded}"
        if not self._is_redrawn and self._started.draw in (draw for draw, _ in resumed.redraws):
            self._is_redrawn = True
            yield f"its problem is drawn again{self._successor}"

    @property
    def _successor(self) -> str:
        return f" as group {self._drawn_again[0]}" if self._drawn_again else ", but no group has started yet"

    @property
    def _recorded(self) -> str:
        count = f"{len(self._rollouts)} of its {self._started.rollouts} rollouts are recorded"
        return f"{count}, which happens when all have ended"

    @property
    def _open(self) -> str:
        newest = self._incarnations[-1]
        if newest.packed:
            state = "it is in the rows of a step that has not settled its groups"
        elif newest.shares:
            state = "it is in the rows of a step that is being formed"
        elif len(self._rollouts) == self._started.rollouts:
            state = "its rollouts wait for a place in a step"
        else:
            state = f"it is in flight; {self._recorded}"
        return f"here the records end: {state}"


def _problem(member: Rollout) -> str:
    expected = "" if member.expected is None else f", expected {member.expected}"
    return f" ({member.domain} {member.problem_id}{expected})"


def _dropped_by(resumed: Resumed) -> dict[DropReason, list[int]]:
    return {
        DropReason.INTERRUPTED: resumed.interrupted,
        DropReason.ROLLED_BACK: resumed.rolled_back,
    }
