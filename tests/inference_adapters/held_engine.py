"""A scripted server that a client can keep busy: after one prompt it samples a token, and then no more."""

import asyncio

from inference_adapters.scripted import ScriptedEngine
from inference_adapters.serve import arguments, run

HELD = [17, 17, 17]


class HeldEngine(ScriptedEngine):
    def __init__(self, token_delay_s: float = 0.0):
        super().__init__(token_delay_s=token_delay_s)
        self._end = asyncio.Event()

    async def _generate(self, prompt, sampling):
        async for delta in super()._generate(prompt, sampling):
            yield delta
            if prompt == HELD:
                await self._end.wait()

    async def abort_requests(self) -> None:
        self._end.set()
        await super().abort_requests()
        self._end.clear()


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    run(HeldEngine(), options)
