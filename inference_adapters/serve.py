"""The command line that every adapter shares: options, the listening socket, the server's end.

An adapter's `__main__` calls `arguments`, adds its own options, builds its engine and calls `run`.
"""

import argparse
import contextlib
import os
import socket
import sys
import traceback

import uvicorn

from contracts.inference import InferenceEngine
from inference_adapters.app import AddGeneration, create_app


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    add_contract_arguments(parser)
    return parser


def add_contract_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that the contract needs to a parser that already has a host and a port."""
    parser.add_argument(
        "--token", default=os.environ.get("PIPELINERL_TOKEN"), help="bearer token (or PIPELINERL_TOKEN)"
    )
    parser.add_argument("--version", type=int, default=0, help="version of the weights it starts with")
    parser.add_argument(
        "--hold-timeout-s",
        type=float,
        default=120.0,
        help="when weights were lost, requests in flight wait this long for the next complete update",
    )


def run(
    engine: InferenceEngine, args: argparse.Namespace, add_generation: AddGeneration | None = None
) -> None:
    """Serves until SIGTERM. Exits with status 1 if the port is in use or the model does not load."""
    listener = _listen(args.host, args.port)
    failures: list[BaseException] = []

    def end(error: BaseException) -> None:
        failures.append(error)
        server.should_exit = True

    app = create_app(engine, args.token, args.version, args.hold_timeout_s, end, add_generation)
    server = Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    print(f"listening at http://{args.host}:{listener.getsockname()[1]}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    if failures:
        traceback.print_exception(failures[0])
        sys.exit(1)


class Server(uvicorn.Server):
    """A uvicorn server that ends its open requests (long generations, long polls) before it closes.

    Requests that do not end within a second are cut off.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.config.app.state.end_requests()
        await super().shutdown(sockets)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        sys.exit(f"cannot listen at {host}:{port}: {error.strerror}")
    return listener
