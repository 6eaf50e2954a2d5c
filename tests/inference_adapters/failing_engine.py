"""A scripted server that is broken on purpose, each way behind an option or a version."""

import asyncio
import time

import torch

from contracts.inference import EngineInfo
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.serve import arguments, run

POISON = 666  # applying this version fails half-way
ONCE = 777  # so does this one, the first time
CURSED = [13]  # sampling from this prompt raises


class FailingEngine(ScriptedEngine):
    def __init__(self, load_s: float, load_fails: bool):
        super().__init__(token_delay_s=0.01)
        self.load_s, self.load_fails = load_s, load_fails
        self.poisonous = {POISON, ONCE}

    def info(self) -> EngineInfo:
        """Without seeds: it could not repeat itself."""
        info = super().info()
        return info.model_copy(update={"capabilities": [c for c in info.capabilities if c != "seed"]})

    async def start(self, version: int) -> None:
        await asyncio.to_thread(time.sleep, self.load_s)
        if self.load_fails:
            raise FileNotFoundError("no such model")
        await super().start(version)

    async def _generate(self, prompt, sampling):
        async for delta in super()._generate(prompt, sampling):
            yield delta
            if prompt == CURSED:
                raise ArithmeticError("cursed")

    def apply_weights(self, tensors, tied, version, kv_cache) -> None:
        if version in self.poisonous:
            self.poisonous.discard(ONCE)
            next(iter(self._weights.values())).zero_()
            raise torch.OutOfMemoryError("poisoned")
        super().apply_weights(tensors, tied, version, kv_cache)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--load-fails", action="store_true")
    options = parser.parse_args()
    run(FailingEngine(options.load_s, options.load_fails), options)
