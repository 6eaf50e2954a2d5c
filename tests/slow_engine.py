"""The scripted engine, slow in one thing: python -m tests.slow_engine --slow-in score|receive ..."""

import asyncio

from inference_adapters.scripted import ScriptedEngine
from inference_adapters.serve import arguments, run

SECONDS = 0.3


class SlowEngine(ScriptedEngine):
    def __init__(self, slow_in: str):
        super().__init__()
        self._slow_in = slow_in

    async def score(self, request):
        if self._slow_in == "score":
            await asyncio.sleep(SECONDS)
        return await super().score(request)

    async def receive_weights(self, request, progress):
        await super().receive_weights(request, progress)
        if self._slow_in == "receive":
            await asyncio.sleep(SECONDS)


if __name__ == "__main__":
    parser = arguments("Serve the scripted engine, slow in one thing.")
    parser.add_argument("--slow-in", choices=["score", "receive"], required=True)
    options = parser.parse_args()
    run(SlowEngine(options.slow_in), options)
