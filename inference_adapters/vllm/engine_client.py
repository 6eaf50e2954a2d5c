"""vLLM's engine client, extended to record version spans and to separate the cache entries of weights.

vLLM's serving layer calls `generate` and drops the spans in its results. So this module records them for the
current HTTP request (`CurrentRequest`). It runs in the API process.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from contracts.commitments import commit
from contracts.errors import ContractError, ErrorCode
from inference_adapters.vllm.batch_rows import with_values
from inference_adapters.vllm.draws import check_keyed
from inference_adapters.vllm.media import check_tokens_alone
from inference_adapters.vllm.request_checks import COMMITTED, KEYS, check_prompt_ids, check_sampling


@dataclass
class CurrentRequest:
    """The state of one HTTP request, with the version spans of its choices."""

    max_tokens: int | None
    draw_keys: list[str] | None = None  # of all choices of all prompts
    commits: bool = False
    prompts: int = 0  # number of prompts that were passed to the engine
    spans: dict[int, list[dict]] = field(default_factory=dict)  # index of the choice -> version spans
    cut_short: set[int] = field(default_factory=set)  # choices that reached max_tokens
    commitments: dict[int, bytes] = field(default_factory=dict)  # index of the choice -> proofs


current_request: ContextVar[CurrentRequest | None] = ContextVar("current_request", default=None)


class EngineClient(AsyncLLM):
    """vLLM's engine client, with recorded version spans and separate cache entries for each version."""

    generation = 0  # number of weight updates

    async def forget_cache(self) -> None:
        """Makes requests that have not started ignore the cache. Call it while the scheduler is paused."""
        self.generation += 1
        await self.engine_core.call_utility_async("forget_prefixes")

    def generate(
        self, prompt: dict, sampling_params: SamplingParams, request_id: str, **options
    ) -> AsyncGenerator[RequestOutput, None]:
        """Samples the completions of a request of any API of vLLM."""
        check_sampling(sampling_params)
        check_tokens_alone(prompt)
        check_prompt_ids(prompt.get("prompt_token_ids") or (), self.model_config.get_vocab_size())
        answer = current_request.get()
        first_choice = (answer.prompts if answer else 0) * sampling_params.n
        if answer and answer.draw_keys:
            check_keyed(sampling_params)
            keys = answer.draw_keys[first_choice : first_choice + sampling_params.n]
            sampling_params = with_values(sampling_params, KEYS, keys)
        names = [secrets.token_hex(8) for _ in range(sampling_params.n)]
        if answer and answer.commits:
            sampling_params = with_values(sampling_params, COMMITTED, names)
        salted = prompt | {"cache_salt": f"{prompt.get('cache_salt', '')}/{self.generation}"}
        outputs = super().generate(salted, sampling_params, request_id, **options)
        if answer is None:  # a request through another API of vLLM
            return outputs
        self._check_length(len(prompt.get("prompt_token_ids", ())), answer.max_tokens)
        answer.prompts += 1
        outputs = _recording_spans(outputs, answer, first_choice)
        return self._committing(outputs, answer, first_choice, names) if answer.commits else outputs

    async def _committing(
        self,
        outputs: AsyncGenerator[RequestOutput, None],
        answer: CurrentRequest,
        first_choice: int,
        names: list[str],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Adds the commitments of each choice that is complete. names: of the choices, in the workers."""
        waiting = dict(enumerate(names, first_choice))
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    for index in waiting.keys() & answer.spans.keys():
                        if spans := answer.spans[index]:
                            states = await self._states(waiting[index], spans[-1]["end"])
                            answer.commitments[index] = await asyncio.to_thread(commit, states)
                            del waiting[index]
                    yield output
        finally:
            if waiting:
                await asyncio.shield(self._call_workers("forget_states", [*waiting.values()]))

    async def _states(self, name: str, tokens: int) -> np.ndarray:
        """Takes the states `[T, H]` of a choice from the worker that has them."""
        answers = await self._call_workers("take_states", name, tokens)
        bits = np.frombuffer(next(filter(None, answers)), np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(tokens, -1)

    async def _call_workers(self, call: str, *args: object) -> list:
        return await self.collective_rpc("weight_transport", args=(call, *args))

    def _check_length(self, prompt: int, max_tokens: int | None) -> None:
        """Raises ContractError if the request exceeds the context. vLLM would reduce max_tokens."""
        context = self.model_config.max_model_len
        if prompt + (max_tokens or 1) > context:
            raise ContractError(
                ErrorCode.CONTEXT_LENGTH,
                f"prompt ({prompt} tokens) and max_tokens ({max_tokens}) exceed the context of {context} "
                "tokens",
            )

    async def warm_up(self) -> None:
        """Samples once, because the first decoding step takes seconds and would delay a weight update."""
        sampling = SamplingParams(max_tokens=2, ignore_eos=True, logprobs=0, top_p=0.9, top_k=2)
        async for _ in self.generate({"prompt_token_ids": [0]}, sampling, "warm-up"):
            pass

    def load(self) -> tuple[int, int]:
        """Returns the numbers of requests that are generating and of those without a first token."""
        states = self.output_processor.request_states.values()
        waiting = sum(state.is_prefilling for state in states)
        return len(states) - waiting, waiting

    async def abort_all(self) -> None:
        processor = self.output_processor
        await self.abort([*processor.request_states, *processor.parent_requests], internal=True)


async def _recording_spans(
    outputs: AsyncGenerator[RequestOutput, None], answer: CurrentRequest, first_choice: int
) -> AsyncGenerator[RequestOutput, None]:
    async with aclosing(outputs):
        async for output in outputs:
            for choice in output.outputs:
                if choice.weight_versions is not None:  # at the end of a choice
                    index = first_choice + choice.index
                    answer.spans[index] = [
                        {"version": int(span.version), "start": span.start, "end": span.end}
                        for span in choice.weight_versions
                    ]
                    if choice.finish_reason == "length":
                        answer.cut_short.add(index)
            yield output
