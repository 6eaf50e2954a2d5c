"""transformers' request state, with the contract's sampling parameters and an outbox for its tokens.

The code runs in the manager's generation thread.
"""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus

from contracts.draws import uniform
from contracts.errors import ContractError, ErrorCode
from contracts.inference import SamplingParameters
from inference_adapters.transformers.outbox import Outbox

if TYPE_CHECKING:
    from inference_adapters.transformers.batching import Batcher
    from inference_adapters.transformers.row_batching import RowBatcher


@dataclass(kw_only=True, repr=False, eq=False)
class Request(RequestState):
    """The state of one request, which transformers schedules."""

    sampling: SamplingParameters
    outbox: Outbox
    batcher: "Batcher | RowBatcher"
    generator: torch.Generator | None = None  # generator of a request with a seed
    likeliest: list[tuple[int, float]] | None = None  # most likely tokens of the last pass, if requested
    # Requests with the same prompt that wait for copies of its keys and values: `num_children` of them.
    siblings: list["Request"] = field(default_factory=list)

    def number(self) -> float | None:
        """Returns the random number of the next token; None if neither a key nor a seed determines it."""
        if self.sampling.draw_key is not None:
            return uniform(self.sampling.draw_key, len(self.outbox.token_ids))
        if self.generator is not None:
            return float(torch.rand(1, dtype=torch.float64, generator=self.generator))
        return None

    def add_sibling(self, sibling: "Request") -> None:
        self.siblings.append(sibling)
        self.num_children += 1

    def fork(self, new_request_id: str) -> "Request":
        """Returns the next sibling, in the state of this request, whose cache was copied for it."""
        sibling = self.siblings.pop(0)
        sibling.request_id = new_request_id
        sibling.remaining_prefill_tokens = self.remaining_prefill_tokens[:]
        sibling.position_offset = self.position_offset
        sibling.allocated_blocks = self.allocated_blocks
        sibling.status = self.status
        return sibling

    def update_and_check_completion(self, token_id: int, logprob: float | None) -> bool:
        """Records a sampled token. Returns True if the request has ended.

        transformers calls it after the forward pass that sampled the token. Weights change only between
        passes, so the current version sampled the token.
        """
        if self.outbox.closed:  # the request was aborted, or its client has disconnected
            self.status = RequestStatus.FINISHED
            return True
        if math.isnan(logprob):
            self.status = RequestStatus.FINISHED
            self.batcher.fail(self.outbox, _undefined(self.sampling))
            return True
        finished = super().update_and_check_completion(token_id, logprob)
        reason = None
        if finished:
            reason = "stop" if token_id in self._eos_token_ids else "length"
        self.outbox.append(token_id, logprob, self.batcher.version, reason, self.likeliest)
        self.batcher.changed_outboxes.add(self.outbox)
        return finished

    def create_equivalent_initial_request(self) -> "Request":
        """Returns a request for the remaining tokens, with the sampled ones as part of the prompt.

        transformers calls it when the cache is full. It also calls it for each sibling that has no room in
        the cache, after it has set `num_children` to 0.
        """
        if self.siblings and not self.num_children:
            return self.siblings.pop(0)
        return Request(
            request_id=self.request_id,
            initial_tokens=self.initial_tokens + self.generated_tokens,
            max_new_tokens=self.max_new_tokens - len(self.generated_tokens),
            eos_token_id=self.eos_token_id,
            sampling=self.sampling,
            outbox=self.outbox,
            batcher=self.batcher,
            generator=self.generator,
            num_children=self.num_children,
            siblings=self.siblings,
        )


def _undefined(sampling: SamplingParameters) -> ContractError:
    return ContractError(
        ErrorCode.ENGINE_FAILED,
        "the model's probabilities of the next token are not finite: its logits are not, or temperature "
        f"{sampling.temperature} is too small for them",
    )
