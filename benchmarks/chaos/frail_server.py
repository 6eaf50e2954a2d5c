"""The scripted server, with two faults of its network on demand.

    python -m benchmarks.chaos.frail_server --port 8001

SIGUSR1 closes its port for good; connections that are open stay open. At SIGUSR2 it begins to send answers
whose bytes are wrong, and at the next it stops doing so.
"""

import asyncio
import signal
import socket
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_adapters import serve
from inference_adapters.scripted import ScriptedEngine


class FrailServer(serve.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        answers = Answers(self.config.loaded_app)
        self.config.loaded_app = answers
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._close_port)
        loop.add_signal_handler(signal.SIGUSR2, answers.change)

    def _close_port(self) -> None:
        for listening in self.servers:
            listening.close()


class Answers:
    """Middleware that passes on the application's responses, unchanged or with corrupted bytes."""

    def __init__(self, app: ASGIApp):
        self._app = app
        self._wrong = False

    def change(self) -> None:
        """Toggles the corruption of responses."""
        self._wrong = not self._wrong

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def spoil(message: Message) -> None:
            if self._wrong and message.get("body"):
                message["body"] = bytes(byte ^ 1 for byte in message["body"])
            await send(message)

        await self._app(scope, receive, spoil)


def main() -> None:
    """Serves the scripted engine, with the options that every server of a run is given."""
    options: Any = serve.arguments(__doc__).parse_args()
    serve.Server = FrailServer
    serve.run(ScriptedEngine(), options)


if __name__ == "__main__":
    main()
