"""One held-out problem with its answers, by weight version, for people who watch a run.

It is the first problem that the first evaluation got wrong, or else its first one.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from contracts.records import Rollout
from contracts.support.messages import printable as escaped
from contracts.support.terminal import printable
from pipelinerl.report.prompt_messages import asked_in, parts_of, special_ids
from pipelinerl.streams.base import StreamError, Streams

STREAM = "eval_rollouts"
FIRST = re.compile(r"eval-(\d+)-\d+-0")
LONGEST = 60  # characters of a prompt's end, of an answer and of what is expected


class OneProblem:
    """Follows the answers to one problem. Of several attempts, the first counts."""

    def __init__(self, streams: Streams, model: Path):
        self._streams = streams
        self._tokenizer = _tokenizer(model)
        self._special = special_ids(self._tokenizer) if self._tokenizer else frozenset()
        self._offset = 0
        self.first: Rollout | None = None
        self.last: Rollout | None = None

    def read(self) -> None:
        """Reads the attempts since the last call, which ends with an evaluation."""
        if self._tokenizer is None:
            return
        attempts = [rollout for rollout in self._new() if rollout.versions and _version(rollout) is not None]
        if self.first is None and attempts:
            first = _version(attempts[0])
            of_first = [rollout for rollout in attempts if _version(rollout) == first]
            wrong = (rollout for rollout in of_first if rollout.success == 0)
            self.first = self.last = next(wrong, of_first[0])
        for rollout in attempts:
            if self.first and rollout.problem_id == self.first.problem_id:
                self.last = rollout

    def newest(self) -> str | None:
        """Returns the problem with its newest answer in one line; None before an evaluation."""
        if self.last is None:
            return None
        return f"{self._asked(self.last)}: {self._answered(self.last)}"

    def change(self) -> str | None:
        """Returns the problem with its first and its newest answer."""
        if self.first is None or self.last is None or self.first is self.last:
            return self.newest()
        return f"{self._asked(self.first)}: {self._answered(self.first)}; {self._answered(self.last)}"

    def _new(self) -> Iterator[Rollout]:
        if STREAM not in self._streams.names():
            return
        try:
            for entry in self._streams.reader(STREAM).read(self._offset, timeout_s=0):
                self._offset = entry.next_offset
                if isinstance(entry.record, Rollout):
                    yield entry.record
        except StreamError:  # retention has deleted the record there
            self._offset = self._streams.reader(STREAM).first_offset()

    def _asked(self, rollout: Rollout) -> str:
        assert self._tokenizer is not None
        ids = rollout.completions[-1].prompt_token_ids.tolist()
        prompt = _one_line(asked_in([*parts_of(ids, self._tokenizer, self._special)]))
        expected = "" if rollout.expected is None else f" (right: {_cut(rollout.expected)})"
        return f"{'…' if len(prompt) > LONGEST else ''}{prompt[-LONGEST:]}{expected}"

    def _answered(self, rollout: Rollout) -> str:
        verdict = "failed" if rollout.success is None else "right" if rollout.success == 1 else "wrong"
        answer = _cut(self._text(rollout.completions[-1].token_ids.tolist()))
        reason = "" if rollout.reason in (None, "", verdict) else f" ({_cut(rollout.reason)})"
        return f"“{answer}” is {verdict}, by version {rollout.versions[-1]}{reason}"

    def _text(self, ids: list[int]) -> str:
        assert self._tokenizer is not None
        return _one_line(self._tokenizer.decode(ids))


def _tokenizer(model: Path) -> Tokenizer | None:
    file = model / "tokenizer.json"
    return Tokenizer.from_file(str(file)) if file.is_file() else None


def _version(rollout: Rollout) -> int | None:
    """Returns the version whose evaluation a first attempt is of; None for other attempts."""
    found = FIRST.fullmatch(rollout.rollout_id)
    return int(found[1]) if found else None


def _one_line(text: str) -> str:
    """Returns text that is safe to print on one line."""
    return printable(escaped(" ".join(text.split())))


def _cut(text: str) -> str:
    line = _one_line(text)
    return f"{line[:LONGEST]}…" if len(line) > LONGEST else line
