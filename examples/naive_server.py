"""The smallest complete inference adapter: a Hugging Face model that rereads the sequence for each token.

    python -m examples.naive_server --model PATH --port 8000

It is the worked example of docs/write-an-inference-adapter.md. It keeps every guarantee and is slow: one
forward pass at a time, no cache of keys and values, no batching.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from contracts.end_tokens import end_tokens_in
from contracts.errors import ContractError, ErrorCode
from contracts.inference import EngineInfo, ProcessFigures, SamplingParameters, TokenDelta
from contracts.limits import KvCacheMode
from inference_adapters.embedded import EmbeddedEngine, resident_bytes
from inference_adapters.serve import arguments, run


@dataclass(eq=False)
class Request:
    """One completion in flight."""

    aborted: bool = False


class NaiveEngine(EmbeddedEngine):
    def __init__(self, path: str):
        super().__init__()
        self._path = path
        self._requests: set[Request] = set()
        self._forward = threading.Lock()  # held by a forward pass, and by a pause

    # --- what it is -------------------------------------------------------------------------------

    def info(self) -> EngineInfo:
        return EngineInfo(
            engine="naive",
            engine_version="1",
            model=self._path,
            backends=["gloo"],
            accepts_dtypes=["float32", "bfloat16"],
            kv_cache=["keep", "recompute"],  # nothing is kept: the next token is always all new
            capabilities=["stream"],
            end_token_ids=self._ends,
        )

    def process(self) -> ProcessFigures:
        return ProcessFigures(resident_bytes=resident_bytes(), running=len(self._requests), waiting=0)

    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(p.shape) for name, p in self._model.named_parameters()}  # a tied one once

    def tied_parameters(self) -> Mapping[str, str]:
        names = {id(p): name for name, p in self._model.named_parameters()}
        every = self._model.named_parameters(remove_duplicate=False)
        return {name: names[id(p)] for name, p in every if names[id(p)] != name}

    def max_context(self) -> int:
        return self._model.config.max_position_embeddings

    # --- its life ---------------------------------------------------------------------------------

    async def start(self, version: int) -> None:
        self._version = version
        await asyncio.to_thread(self._load)

    def _load(self) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(self._path)
        self._model = AutoModelForCausalLM.from_pretrained(self._path, dtype=torch.float32).eval()
        self._ends = end_tokens_in(self._path, self._tokenizer)

    async def close(self) -> None:
        await self.abort_requests()

    # --- weights ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def pause_generation(self) -> Iterator[None]:
        with self._forward:
            yield

    @torch.no_grad()
    def apply_weights(
        self,
        tensors: Mapping[str, torch.Tensor],
        tied: Mapping[str, str],
        version: int,
        kv_cache: KvCacheMode,
    ) -> None:
        for name, parameter in self._model.named_parameters():
            parameter.copy_(tensors[name])  # casts; a tied head is the same parameter
        self._version = version

    async def abort_requests(self) -> None:
        for request in self._requests:
            request.aborted = True

    # --- generation -------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def encode_chat(self, messages: list[dict], tools: list[dict] | None) -> list[int]:
        return self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    def generate(
        self, prompt_token_ids: list[int], sampling: SamplingParameters
    ) -> AsyncIterator[TokenDelta]:
        vocabulary = self._model.config.vocab_size
        if not all(0 <= token_id < vocabulary for token_id in prompt_token_ids):
            raise ContractError(ErrorCode.INVALID_REQUEST, f"token ids must lie in 0 ... {vocabulary - 1}")
        return self._generate(list(prompt_token_ids), sampling)

    async def _generate(self, ids: list[int], sampling: SamplingParameters) -> AsyncIterator[TokenDelta]:
        request = Request()
        self._requests.add(request)
        try:
            for sampled in range(1, sampling.max_tokens + 1):
                if request.aborted:
                    break
                token_id, logprob, version = await asyncio.to_thread(self._next, ids, sampling.temperature)
                ids.append(token_id)
                stopped = token_id in self._ends or token_id in sampling.stop_token_ids
                reason = "stop" if stopped else "length" if sampled == sampling.max_tokens else None
                yield TokenDelta([token_id], [logprob], [version], reason)
                if reason:
                    return
            yield TokenDelta([], [], [], "abort")
        finally:  # also when the client has gone
            self._requests.discard(request)

    @torch.no_grad()
    def _next(self, ids: list[int], temperature: float) -> tuple[int, float, int]:
        """Returns a token, its log-probability under the distribution sampled from, and its version."""
        with self._forward:
            logits = self._model(torch.tensor([ids]), use_cache=False, logits_to_keep=1).logits[0, -1]
            version = self._version
        if temperature == 0:
            log_p = logits.log_softmax(-1)
            token_id = int(log_p.argmax())
        else:
            log_p = (logits / temperature).log_softmax(-1)
            token_id = int(torch.multinomial(log_p.exp(), 1))
        return token_id, float(log_p[token_id]), version


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--model", required=True, help="directory of a Hugging Face causal language model")
    options = parser.parse_args()
    run(NaiveEngine(options.model), options)
