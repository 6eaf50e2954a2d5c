"""A server that emulates a GPU's times.

    python -m benchmarks.emulated.server --mean-tokens 50 --sigma 1 --token-s 0.02 --token-each-s 0.001 \\
        --prompt-s 0.0001 --apply-s 0.5

A token takes `token_s`, and `token_s_each` more for each request in flight; a token of a prompt takes
`prompt_s`. New weights stop generation for `apply_s`. The tokens are all the same: no model samples them.
"""

import asyncio
import time
from collections.abc import AsyncGenerator

import torch

from benchmarks.emulated.lengths import Lengths
from contracts.inference import SamplingParameters, TokenDelta
from inference_adapters.scripted import ALPHABET, EOS, HIDDEN, RunningRequest, ScriptedEngine
from inference_adapters.serve import arguments, run

TOKEN = 1 + ALPHABET.index("0")
LOGPROB = -1.0
SHORTEST_SLEEP_S = 0.05  # least duration of a block of tokens, so that a busy machine distorts little


class EmulatedEngine(ScriptedEngine):
    def __init__(
        self, lengths: Lengths, token_s: float, token_s_each: float, prompt_s: float, apply_s: float
    ):
        super().__init__()
        self._lengths = lengths
        self._token_s = token_s
        self._token_s_each = token_s_each
        self._prompt_s = prompt_s
        self._apply_s = apply_s
        self._requests = 0

    def apply_weights(self, *update) -> None:
        super().apply_weights(*update)
        time.sleep(self._apply_s)

    def generate(
        self, prompt_token_ids: list[int], sampling: SamplingParameters
    ) -> AsyncGenerator[TokenDelta, None]:
        length = self._lengths.of(self._requests)
        self._requests += 1
        return self._emulate(prompt_token_ids, length, sampling.max_tokens)

    async def _emulate(self, prompt: list[int], length: int, most: int) -> AsyncGenerator[TokenDelta, None]:
        sequence = RunningRequest(list(prompt), torch.zeros(HIDDEN))
        self._sequences.add(sequence)
        left = min(length, most)
        due = time.monotonic() + self._prompt_s * len(prompt)  # when the last block was complete
        try:
            while left:
                due = await self._wait(sequence, due)
                if sequence.aborted:
                    yield TokenDelta([], [], [], "abort")
                    return
                each_s = self._token_s + self._token_s_each * len(self._sequences)
                block = min(left, max(1, round(SHORTEST_SLEEP_S / each_s)))
                version = self._version
                due += block * each_s
                await asyncio.sleep(due - time.monotonic())
                left -= block
                ids = [TOKEN] * block
                if not left and length <= most:
                    ids[-1] = EOS
                reason = None if left else "stop" if length <= most else "length"
                yield TokenDelta(ids, [LOGPROB] * block, [version] * block, reason)
        finally:
            self._sequences.discard(sequence)

    async def _wait(self, sequence: RunningRequest, due: float) -> float:
        """Returns when the next block begins: at `due`, or after the current pause."""
        if not self._paused:
            return due
        await self._wait_while_paused(sequence)
        return max(due, time.monotonic())


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--mean-tokens", type=float, required=True)
    parser.add_argument("--sigma", type=float, required=True, help="of the lognormal lengths; 0 = constant")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths")
    for name in ("token", "token-each", "prompt", "apply"):
        parser.add_argument(f"--{name}-s", type=float, required=True)
    options = parser.parse_args()
    lengths = Lengths(options.mean_tokens, options.sigma, options.seed)
    times = (options.token_s, options.token_each_s, options.prompt_s, options.apply_s)
    run(EmulatedEngine(lengths, *times), options)
