"""Serves a tiny engine for tests, which is the worked example of an adapter.

Its language model is a recurrent net of about a thousand weights over characters:

    h_t = tanh(W h_{t-1} + b + embed[token_t]),   logits = embed @ (norm * h_t) + head_bias

So it has weights, log-probabilities and a tied head like a real model. The state h is its KV cache: "keep"
preserves it over an update, "recompute" and a sleep rebuild it. HTTP and the contract's rules are implemented
elsewhere. Run it by `python -m inference_adapters.scripted --port 8001`.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from contracts.commitments import commit
from contracts.draws import uniform
from contracts.errors import ContractError, ErrorCode
from contracts.inference import (
    EngineInfo,
    Kept,
    ProcessFigures,
    SamplingParameters,
    ScoreRequest,
    ScoreResponse,
    TokenDelta,
)
from contracts.limits import KvCacheMode
from inference_adapters.embedded import EmbeddedEngine, resident_bytes
from inference_adapters.scoring import Scores, score_response
from inference_adapters.serve import arguments, run

EOS = 0
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # ids 1 ... 96
VOCABULARY = len(ALPHABET) + 1
HIDDEN = 8
CONTEXT = 4096

EMBED = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
HEAD_BIAS = "lm_head.bias"
WEIGHT = "model.layers.0.weight"
BIAS = "model.layers.0.bias"
NORM = "model.norm.weight"


@dataclass(eq=False)
class RunningRequest:
    """One request in flight."""

    token_ids: list[int]  # prompt and sampled tokens
    state: torch.Tensor | None = None  # [HIDDEN] state after the last token; None: it must be computed
    aborted: bool = False


class ScriptedEngine(EmbeddedEngine):
    """The scripted engine. It sleeps `token_delay_s` after each token, to keep requests in flight."""

    def __init__(self, token_delay_s: float = 0.0, seed: int = 0):
        super().__init__()
        self.token_delay_s = token_delay_s
        self._weights = self.initial_weights(seed)
        self._shapes = {name: tuple(tensor.shape) for name, tensor in self._weights.items()}
        self._generator = torch.Generator().manual_seed(seed)
        self._version = 0
        self._sequences: set[RunningRequest] = set()
        self._paused = False
        self._changed = asyncio.Condition()  # notified when a pause or an abort begins or ends

    @staticmethod
    def initial_weights(seed: int) -> dict[str, torch.Tensor]:
        """Returns float32 weights by Hugging Face-like name, without the tied head."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        head_bias = 0.1 * normal(VOCABULARY)
        head_bias[EOS] = -4.0  # makes completions of a few hundred tokens usual
        return {
            EMBED: normal(VOCABULARY, HIDDEN),
            WEIGHT: 0.5 * normal(HIDDEN, HIDDEN),
            BIAS: 0.1 * normal(HIDDEN),
            NORM: 1.0 + 0.1 * normal(HIDDEN),
            HEAD_BIAS: head_bias,
        }

    def info(self) -> EngineInfo:
        return EngineInfo(
            engine="scripted",
            engine_version="1",
            model="scripted",
            backends=["gloo", "ipc"],
            accepts_dtypes=["float32", "bfloat16", "float16"],
            kv_cache=["keep", "recompute"],
            capabilities=[
                "score",
                "score_top",
                "staged",
                "truncation",
                "seed",
                "stream",
                "top_logprobs",
                "sleep",
                "prescribed_draws",
                "commitments",
            ],
            end_token_ids=[EOS],
        )

    def process(self) -> ProcessFigures:
        return ProcessFigures(resident_bytes=resident_bytes(), running=len(self._sequences), waiting=0)

    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def tied_parameters(self) -> Mapping[str, str]:
        return {HEAD: EMBED}

    def max_context(self) -> int:
        return CONTEXT

    async def start(self, version: int) -> None:
        self._version = version
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        await self.abort_requests()

    # --- weights: the methods that `EmbeddedEngine` needs -----------------------------------------

    @contextlib.contextmanager
    def pause_generation(self) -> Iterator[None]:
        # Forward passes run on the event loop, so none is running after this call.
        asyncio.run_coroutine_threadsafe(self._set_paused(True), self._loop).result()
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(self._set_paused(False), self._loop).result()

    async def _set_paused(self, paused: bool) -> None:
        async with self._changed:
            self._paused = paused
            self._changed.notify_all()

    def apply_weights(
        self,
        tensors: Mapping[str, torch.Tensor],
        tied: Mapping[str, str],
        version: int,
        kv_cache: KvCacheMode,
    ) -> None:
        for name, weight in self._weights.items():
            weight.copy_(tensors[name])  # casts to the model's dtype; the head shares the embedding's memory
        self._version = version
        if kv_cache == "recompute":
            for sequence in list(self._sequences):  # a copy, because new requests may arrive
                sequence.state = self._states(sequence.token_ids)[-1]

    def release(self, keep: Kept) -> None:
        for sequence in list(self._sequences):
            sequence.state = None
        if keep == "nothing":
            self._weights = {name: torch.empty(0) for name in self._shapes}

    def restore(self) -> None:
        for name, shape in self._shapes.items():
            if self._weights[name].shape != shape:
                self._weights[name] = torch.empty(shape)

    async def abort_requests(self) -> None:
        async with self._changed:
            for sequence in self._sequences:
                sequence.aborted = True
            self._changed.notify_all()

    # --- the model --------------------------------------------------------------------------------

    def _advance(self, state: torch.Tensor, token_id: int) -> torch.Tensor:
        w = self._weights
        return torch.tanh(w[WEIGHT] @ state + w[BIAS] + w[EMBED][token_id])

    def _states(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Returns the `[len(token_ids), HIDDEN]` states after each token."""
        states = [torch.zeros(HIDDEN)]
        for token_id in token_ids:
            states.append(self._advance(states[-1], token_id))
        return torch.stack(states[1:])

    def normed(self, states: torch.Tensor) -> torch.Tensor:
        """Returns what the output head reads."""
        return self._weights[NORM] * states

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        """Returns `[..., VOCABULARY]` logits of `[..., HIDDEN]` states."""
        return self.normed(states) @ self._weights[EMBED].T + self._weights[HEAD_BIAS]

    def sample(
        self, logits: torch.Tensor, sampling: SamplingParameters, generator: torch.Generator
    ) -> tuple[int, float]:
        """Returns a token id and its log-probability under the distribution it is sampled from."""
        log_p = distribution(logits, sampling)
        if sampling.temperature == 0:
            token_id = int(log_p.argmax())
        else:
            token_id = int(torch.multinomial(log_p.exp(), 1, generator=generator))
        return token_id, float(log_p[token_id])

    def prescribed(
        self, logits: torch.Tensor, sampling: SamplingParameters, number: int
    ) -> tuple[int, float]:
        """Returns the token that the request's key prescribes, `number` tokens after the prompt."""
        log_p = distribution(logits, sampling)
        below = log_p.exp().cumsum(0, dtype=torch.float64)
        drawn = uniform(sampling.draw_key, number) * below[-1]
        token_id = int(torch.searchsorted(below, drawn, right=True))
        return token_id, float(log_p[token_id])

    def committed(self, prompt: Sequence[int], rows: Sequence[torch.Tensor]) -> bytes:
        """Returns the commitments to what the output head has read. rows: `[HIDDEN]` of each token."""
        return commit(torch.stack([*rows]).numpy())

    def likeliest(self, logits: torch.Tensor, sampling: SamplingParameters) -> list[tuple[int, float]]:
        """Returns the most likely tokens of the distribution that is sampled from, with log-probabilities."""
        top = distribution(logits, sampling).topk(min(sampling.top_logprobs, VOCABULARY))
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return [(token_id, logprob) for token_id, logprob in pairs if logprob > -torch.inf]

    # --- generation -------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        unknown = ALPHABET.index("?")
        return [1 + (i if (i := ALPHABET.find(char)) >= 0 else unknown) for char in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(ALPHABET[i - 1] for i in token_ids if i != EOS)

    def encode_chat(self, messages: list[dict], tools: list[dict] | None) -> list[int]:
        return self.encode(
            "".join(f"{m['role']}: {m.get('content') or ''}\n" for m in messages) + "assistant: "
        )

    def generate(
        self, prompt_token_ids: list[int], sampling: SamplingParameters
    ) -> AsyncGenerator[TokenDelta, None]:
        _check_ids(prompt_token_ids)
        return self._generate(prompt_token_ids, sampling)

    async def _generate(
        self, prompt: list[int], sampling: SamplingParameters
    ) -> AsyncGenerator[TokenDelta, None]:
        generator = self._generator
        if sampling.seed is not None:
            generator = torch.Generator().manual_seed(sampling.seed)
        sequence = RunningRequest(list(prompt))
        self._sequences.add(sequence)
        rows: list[torch.Tensor] = []
        try:
            for sampled in range(1, sampling.max_tokens + 1):
                await self._wait_while_paused(sequence)
                if sequence.aborted:
                    yield TokenDelta([], [], [], "abort")
                    return
                if sequence.state is None:  # after the wait, so that one version reads everything
                    sequence.state = self._states(sequence.token_ids)[-1]
                logits = self._logits(sequence.state)
                if sampling.draw_key is None:
                    token_id, logprob = self.sample(logits, sampling, generator)
                else:
                    token_id, logprob = self.prescribed(logits, sampling, sampled - 1)
                if sampling.commitments:
                    rows.append(self.normed(sequence.state))
                tops = [self.likeliest(logits, sampling)] if sampling.top_logprobs else ()
                sequence.token_ids.append(token_id)
                sequence.state = self._advance(sequence.state, token_id)
                stopped = token_id == EOS or token_id in sampling.stop_token_ids
                reason = "stop" if stopped else "length" if sampled == sampling.max_tokens else None
                proofs = self.committed(prompt, rows) if reason and sampling.commitments else None
                yield TokenDelta([token_id], [logprob], [self._version], reason, tops, proofs)
                if reason:
                    return
                await asyncio.sleep(self.token_delay_s)
        finally:
            self._sequences.discard(sequence)

    async def _wait_while_paused(self, sequence: RunningRequest) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._paused or sequence.aborted)

    async def score(self, request: ScoreRequest) -> ScoreResponse:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._paused)
        for token_ids in request.sequences:
            _check_ids(token_ids, "sequences")
        scores = [self.scores_of(ids, request.temperature, request.top_logprobs) for ids in request.sequences]
        return score_response(request, scores)

    def scores_of(self, token_ids: list[int], temperature: float, top: int) -> Scores:
        """Returns the scores of one sequence."""
        states = self._states(token_ids)[:-1]
        log_p = torch.log_softmax(self._logits(states) / temperature, -1)
        chosen = torch.tensor(token_ids[1:], dtype=torch.long)
        best = log_p.topk(min(top, VOCABULARY))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        likeliest = [[*zip(*position, strict=True)] for position in pairs]
        return Scores(log_p.gather(1, chosen[:, None])[:, 0].tolist(), self._version, likeliest)


def _check_ids(token_ids: Sequence[int], param: str = "prompt") -> None:
    if not all(0 <= token_id < VOCABULARY for token_id in token_ids):
        why = f"token ids must lie in 0 ... {VOCABULARY - 1}"
        raise ContractError(ErrorCode.INVALID_REQUEST, why, param)


def distribution(logits: torch.Tensor, sampling: SamplingParameters) -> torch.Tensor:
    """Returns the log-probabilities `[VOCABULARY]` from which a token is sampled, or greedily chosen."""
    if sampling.temperature == 0:
        return torch.log_softmax(logits, -1)
    return truncated(torch.log_softmax(logits / sampling.temperature, -1), sampling)


def truncated(log_p: torch.Tensor, sampling: SamplingParameters) -> torch.Tensor:
    """Renormalises over the `top_k` most likely tokens, then over the smallest set with mass `top_p`."""
    if sampling.top_k is not None and sampling.top_k < len(log_p):
        kept = torch.full_like(log_p, -torch.inf)
        top = log_p.topk(sampling.top_k)
        log_p = torch.log_softmax(kept.scatter(0, top.indices, top.values), -1)
    if sampling.top_p is not None:
        ordered, order = log_p.sort(descending=True)
        before = ordered.exp().cumsum(0) - ordered.exp()  # the mass of more likely tokens
        dropped = order[before >= sampling.top_p]
        log_p = torch.log_softmax(log_p.index_fill(0, dropped, -torch.inf), -1)
    return log_p


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--token-delay-s", type=float, default=0.0, help="wait after every token")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and of sampling")
    options = parser.parse_args()
    run(ScriptedEngine(options.token_delay_s, options.seed), options)
