"""A scripted server that is broken on purpose, each way behind an option or a version."""

import argparse
import asyncio
import threading
import time

import torch

from contracts.inference import EngineInfo, Health
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.serve import arguments, run

POISON = 666  # applying this version fails midway
ONCE = 777  # applying this version fails midway, the first time only
CURSED = [13]  # sampling after this prompt raises
HELD = [14]  # sampling after this prompt goes on once weights were lost


class FailingEngine(ScriptedEngine):
    def __init__(self, options: argparse.Namespace):
        super().__init__(token_delay_s=0.01)
        self.load_s, self.load_fails = options.load_s, options.load_fails
        self.options = options
        self.received = 0
        self.poisonous = {POISON, ONCE}
        self.lost = threading.Event()

    def info(self) -> EngineInfo:
        """Declares no seeds, because it could not repeat itself."""
        info = super().info()
        capabilities = [c for c in info.capabilities if c != "seed"]
        dtypes = self.options.accepts or info.accepts_dtypes
        return info.model_copy(update={"capabilities": capabilities, "accepts_dtypes": dtypes})

    def health(self) -> Health:
        return Health(status="unhealthy", reason="unwell") if self.options.unwell else super().health()

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
            while prompt == HELD and not self.lost.is_set():
                await asyncio.sleep(0.005)

    async def receive_weights(self, request, progress) -> None:
        self.received = 0
        await super().receive_weights(request, progress)

    def buffered(self, bucket):
        if self.received == self.options.fails_in_bucket:
            raise torch.OutOfMemoryError("no room for the bucket")
        self.received += 1
        return super().buffered(bucket)

    async def sleep(self, request) -> int:
        if self.options.awake:
            raise MemoryError("cannot let go")
        return await super().sleep(request)

    def apply_weights(self, tensors, tied, version, kv_cache) -> None:
        if version in self.poisonous:
            self.poisonous.discard(ONCE)
            next(iter(self._weights.values())).zero_()
            self.lost.set()
            raise torch.OutOfMemoryError("poisoned")
        super().apply_weights(tensors, tied, version, kv_cache)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--load-fails", action="store_true")
    parser.add_argument("--fails-in-bucket", type=int, help="of every update, counted from 0")
    parser.add_argument("--accepts", action="append", help="the only dtype that it casts from")
    parser.add_argument("--unwell", action="store_true", help="unhealthy, although its weights are live")
    parser.add_argument("--awake", action="store_true", help="cannot sleep")
    options = parser.parse_args()
    run(FailingEngine(options), options)
