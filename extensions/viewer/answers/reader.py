"""Builds the answer about one rollout: for each token its weight version, advantage, loss mask and lag."""

import numpy as np

from contracts.records import Completion, MicroBatchRow, Rollout, TrainingSequence
from extensions.viewer.answers.overview import Answer
from extensions.viewer.answers.pieces import pieces_of
from extensions.viewer.answers.rollouts import judged, link_of, row_answer
from extensions.viewer.answers.turns import answer_of, prompt_of
from extensions.viewer.runs.opened import STREAMS, OpenRun
from pipelinerl.batching.sequences import chains_of
from pipelinerl.streams import StreamError

TOKENS = 4000  # most tokens of a completion in one answer


class NoSuchRolloutError(LookupError):
    """No rollout is recorded at this offset."""


def rollout(run: OpenRun, stream: str, offset: int, turn: int | None = None, begin: int = 0) -> Answer:
    """Returns a rollout with its completions, or only completion `turn`, each from token `begin` on.

    stream: `train` or `held-out`. Raises NoSuchRolloutError.
    """
    held_out = stream == "held-out"
    row = run.queries.rollout(held_out, offset)
    if row is None:
        raise NoSuchRolloutError(f"no rollout is recorded at {stream}/{offset}")
    try:
        record = run.reader(STREAMS[stream]).at(offset)
    except StreamError as error:
        raise NoSuchRolloutError(f"the record of this rollout is no longer there: {error}") from error
    assert isinstance(record, Rollout)
    is_open = held_out or row["outcome"] is None or row["row_offset"] is None
    share = None if is_open else _Training.find(run, record, row["row_offset"])
    before, after = run.queries.neighbours(held_out, offset)
    wanted = range(len(record.completions)) if turn is None else [turn]
    if any(number >= len(record.completions) for number in wanted):
        raise NoSuchRolloutError(f"{stream}/{offset} has {len(record.completions)} turns, not {turn}")
    return row_answer(row) | {
        "run": record.run,
        **judged(record),
        "reward_components": record.reward_components,
        "metrics": record.metrics,
        "turn_rewards": record.turn_rewards,
        "training": share.answer if share else None,
        "previous": link_of(held_out, before),
        "next": link_of(held_out, after),
        "has_text": run.tokenizer is not None,
        "completions": [_completion(run, record, number, share, begin) for number in wanted],
    }


def _completion(run: OpenRun, record: Rollout, number: int, share: "_Training | None", begin: int) -> Answer:
    completion = record.completions[number]
    end = min(begin + TOKENS, len(completion.token_ids))
    shown = slice(begin, end)
    versions = _versions(completion)[shown]
    return {
        "turn": number,
        "server": completion.server,
        "began": completion.began or None,
        "ended": completion.ended or None,
        "finish_reason": completion.finish_reason,
        "temperature": completion.temperature,
        "segments": completion.segments,
        **({} if begin else prompt_of(run, record, number) | answer_of(run, record, number)),
        "tokens": len(completion.token_ids),
        "from": begin,
        "next_from": end if end < len(completion.token_ids) else None,
        "pieces": pieces_of(completion.token_ids.tolist(), run.tokenizer, begin, end),
        "ids": completion.token_ids[shown].tolist(),
        "logprobs": [float(str(value)) for value in completion.logprobs[shown]],
        "versions": versions.tolist(),
        **(share.tokens(completion, versions, shown) if share else UNTRAINED),
    }


UNTRAINED: Answer = {"advantages": None, "in_loss": None, "lags": None}


def _versions(completion: Completion) -> np.ndarray:
    versions = np.full(len(completion.token_ids), -1)
    for span in completion.spans:
        versions[span.start : span.end] = span.version
    return versions


def _in_row(row: MicroBatchRow, rollout_id: str) -> list[tuple[int, TrainingSequence]]:
    """Returns a rollout's sequences in a row, each with its trainer rank."""
    return [
        (rank, sequence)
        for rank, sequences in enumerate(row.micro_batches)
        for sequence in sequences
        if sequence.rollout_id == rollout_id
    ]


class _Training:
    """The training sequences of one rollout in the rows of a step. row and rank: of the first of them."""

    def __init__(self, row: MicroBatchRow, sequences: list[tuple[int, TrainingSequence]]):
        self._step = row.step
        self._sequences = [sequence for _, sequence in sequences]
        in_loss = np.concatenate([s.versions[s.loss_mask] for s in self._sequences])
        sampled = in_loss[in_loss >= 0]
        self.answer: Answer = {
            "step": row.step,
            "row": row.index,
            "rank": sequences[0][0],
            "tokens_in_loss": len(in_loss),
            "sampled": int(sum(np.count_nonzero(s.versions >= 0) for s in self._sequences)),
            "lag_min": row.step - int(sampled.max()) if len(sampled) else None,
            "lag_max": row.step - int(sampled.min()) if len(sampled) else None,
            "loss_weight": self._sequences[0].loss_weight,
        }

    @classmethod
    def find(cls, run: OpenRun, record: Rollout, offset: int) -> "_Training | None":
        """Finds the rollout in the row at `offset`, and in those of its step that follow.

        Returns None if that record was deleted or lacks it.
        """
        wanted = len(chains_of(record.completions))
        found: list[tuple[int, TrainingSequence]] = []
        first = None
        try:
            for row, _ in run.reader("rows").read(offset, timeout_s=0):
                assert isinstance(row, MicroBatchRow)
                first = first or row
                found += _in_row(row, record.rollout_id) if row.step == first.step else []
                if row.step != first.step or len(found) == wanted:
                    break
        except StreamError:
            return None
        return cls(first, found) if first and found else None

    def tokens(self, completion: Completion, versions: np.ndarray, shown: slice) -> Answer:
        """Returns advantages, loss mask and lags of the completion's tokens; None if it is in no sequence."""
        place = self._find_tokens(completion)
        if place is None:
            return UNTRAINED
        sequence, begin = place
        trained = slice(begin + shown.start, begin + shown.stop)
        return {
            "advantages": [float(str(value)) for value in sequence.advantages[trained]],
            "in_loss": sequence.loss_mask[trained].tolist(),
            "lags": (self._step - versions).tolist() if np.all(versions >= 0) else None,
        }

    def _find_tokens(self, completion: Completion) -> tuple[TrainingSequence, int] | None:
        """Returns the sequence that contains the completion, and the index of its first sampled token."""
        begin = len(completion.prompt_token_ids)
        end = begin + len(completion.token_ids)
        whole = np.concatenate([completion.prompt_token_ids, completion.token_ids])
        for sequence in self._sequences:
            if len(sequence.token_ids) >= end and np.array_equal(sequence.token_ids[:end], whole):
                return sequence, begin
        return None
