"""Packs rollouts into rows of micro-batches, one per data-parallel rank. Pure state, no I/O."""

from contracts.records import MicroBatchRow, TrainingSequence


class Fifo:
    """Packs rollouts in order of arrival, each into the micro-batch of the rank with the fewest tokens.

    A row is complete when the next rollout fits into none of its micro-batches. A rollout longer than
    `micro_batch_tokens` gets a micro-batch alone.

    split_rollouts: False if all sequences of a rollout must be in one micro-batch. If True, each sequence is
        added alone, for objectives whose terms are those of tokens.
    """

    def __init__(
        self, micro_batch_tokens: int, ranks: int, first_step: int = 0, split_rollouts: bool = False
    ):
        if not isinstance(micro_batch_tokens, int) or micro_batch_tokens < 1:
            raise ValueError(f"micro_batch_tokens must be a positive whole number, not {micro_batch_tokens}")
        if not isinstance(split_rollouts, bool):
            raise ValueError(f"split_rollouts must be true or false, not {split_rollouts!r}")
        self.split_rollouts = split_rollouts
        self._budget = micro_batch_tokens
        self._ranks = ranks
        self._step = first_step
        self._index = 0
        self._clear()

    def _clear(self) -> None:
        self._micro_batches: list[list[TrainingSequence]] = [[] for _ in range(self._ranks)]
        self._tokens = [0] * self._ranks
        self._masked = 0

    def add_rollout(self, sequences: list[TrainingSequence], masked_tokens: int = 0) -> MicroBatchRow | None:
        """Adds a rollout's sequences. Returns the previous row if the rollout did not fit into it."""
        tokens = sum(len(s.token_ids) for s in sequences)
        emptiest = min(self._tokens)
        row = self._take_row(group_ids=[]) if emptiest and emptiest + tokens > self._budget else None
        rank = self._tokens.index(min(self._tokens))
        self._micro_batches[rank].extend(sequences)
        self._tokens[rank] += tokens
        self._masked += masked_tokens
        return row

    def close_step(self, group_ids: list[int]) -> MicroBatchRow:
        """Returns the row that closes the step, with the remaining rollouts."""
        row = self._take_row(group_ids, closes_step=True)
        self._step = self._step + 1
        self._index = 0
        return row

    def _take_row(self, group_ids: list[int], closes_step: bool = False) -> MicroBatchRow:
        row = MicroBatchRow(
            step=self._step,
            index=self._index,
            micro_batches=self._micro_batches,
            closes_step=closes_step,
            group_ids=group_ids,
            masked_tokens=self._masked,
        )
        self._index += 1
        self._clear()
        return row
