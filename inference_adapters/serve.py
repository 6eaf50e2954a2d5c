"""The command line that all adapters share, and the server's start and end.

An adapter's `__main__` calls `arguments`, adds its own options, creates its engine and calls `run`.
"""

import argparse
import contextlib
import gc
import importlib
import socket
import sys
import traceback
from collections.abc import Sequence
from functools import partial

import uvicorn
from fastapi import FastAPI

from contracts.inference import InferenceEngine
from contracts.limits import LONGEST_S, MAX_INTEGER, Limits
from contracts.support.listening import listening_socket
from contracts.support.token import TokenError, add_token_arguments, token_of
from contracts.whole_model import IncompleteModelError
from inference_adapters.app import AddGeneration, create_app
from inference_adapters.channel import WeightChannels
from inference_adapters.http_protocol import LimitedProtocol, limits_here
from inference_adapters.weight_updates import WeightUpdates

IDLE_TIMEOUT_S = 5  # keep-alive timeout of a connection without a request
CHANNEL_OPTIONS = ("--weight-sources", "--weight-directory")  # refused without --weight-channels
GC_OBJECTS = 100_000  # new objects that start a collection; Python's default is 700
GC_PASSES = 50  # collections of one generation before the next generation is collected


def arguments(description: str, argv: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Returns the parser of an adapter's command line. `argv`: by default `sys.argv[1:]`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=_port, default=8000, help="0 takes a free one")
    parser.add_argument(
        "--served-model-name", nargs="+", default=[], help="names of the model besides the one in /contract"
    )
    add_contract_arguments(parser, argv)
    return parser


def add_contract_arguments(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> None:
    """Adds the options of the contract to a parser that already has `--host` and `--port`."""
    add_token_arguments(parser)
    parser.add_argument("--version", type=_version, default=0, help="version of the weights it starts with")
    parser.add_argument(
        "--hold-timeout-s",
        type=_seconds,
        default=120.0,
        help="when weights were lost or the server sleeps, requests wait this long for the next update",
    )
    parser.allow_abbrev = False  # --weight-channels is read before the other options
    _add_channel_arguments(parser, argv)


def _add_channel_arguments(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Adds `--weight-channels`, and the options of the class that it names."""
    first = argparse.ArgumentParser(
        prog=parser.prog, usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False
    )
    for each in (first, parser):
        each.add_argument(
            "--weight-channels",
            "--weight_channels",  # vLLM's parser allows underscores in all options
            type=_channels,
            metavar="CLASS",
            help="class of the weight channels that the server offers; it adds options of its own. By "
            "default none. There is one: extensions.stored_weights.channels.StoredChannels",
        )
    named, others = first.parse_known_args(argv)
    if named.weight_channels is not None:
        named.weight_channels.add_arguments(parser)
    elif stray := next((each for each in others if each.split("=")[0] in CHANNEL_OPTIONS), None):
        first.error(f"{stray} is of weight channels: name their class with --weight-channels")


def _channels(path: str) -> type[WeightChannels]:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # importing a user's module may raise any error
        raise argparse.ArgumentTypeError(f"{path} cannot be imported: {error}") from error
    if not isinstance(found, type) or not issubclass(found, WeightChannels):
        raise argparse.ArgumentTypeError(f"{path} is no class of weight channels")
    return found


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port: 0 ... 65535")
    return int(text)


def _version(text: str) -> int:
    if not text.isdigit() or int(text) >= MAX_INTEGER:
        raise argparse.ArgumentTypeError(f"{text} is no version: 0 or more")
    return int(text)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text}: more than 0 seconds, and less than a day")
    return seconds


def run(
    engine: InferenceEngine,
    args: argparse.Namespace,
    add_generation: AddGeneration | None = None,
    limits: Limits | None = None,
) -> None:
    """Serves until SIGTERM. Exits with status 1 if the port is in use or the model does not load.

    limits: by default those of the contract.
    """
    try:
        token = token_of(args.token_file)
        channels = args.weight_channels.of(args) if args.weight_channels else None
        if channels is not None:
            channels.capabilities(engine)  # raises its errors now instead of in every request
    except (TokenError, OSError, ValueError) as error:
        sys.exit(f"cannot serve: {error}")
    listener = listening_socket(args.host, args.port)
    failures: list[BaseException] = []

    def end(error: BaseException) -> None:
        failures.append(error)
        server.should_exit = True

    limits = limits_here(limits or Limits())
    updates = WeightUpdates(engine, args.hold_timeout_s, limits, channels)
    app = create_app(updates, token, args.version, end, add_generation, args.served_model_name or ())
    server = server_of(app, limits)
    print(f"listening at http://{args.host}:{listener.getsockname()[1]}", flush=True)
    _tune_garbage_collector()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    if failures:
        if isinstance(failures[0], IncompleteModelError):
            sys.exit(f"cannot serve: {failures[0]}")
        traceback.print_exception(failures[0])
        sys.exit(1)


def server_of(app: FastAPI, limits: Limits) -> "Server":
    """Returns the HTTP server of `app`, with `limits` on connections and headers."""
    return Server(
        uvicorn.Config(
            app,
            http=partial(LimitedProtocol, limits),
            ws="none",
            proxy_headers=False,  # any client could claim another address
            h11_max_incomplete_event_size=limits.max_header_bytes,
            timeout_keep_alive=IDLE_TIMEOUT_S,
            timeout_graceful_shutdown=1,
            log_level="error",  # warnings about malformed requests could fill a disk
        )
    )


class Server(uvicorn.Server):
    """A uvicorn server that ends open requests (long generations, long polls) before it shuts down.

    After a second it closes the connections of requests that have not ended.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.config.app.state.end_requests()
        await super().shutdown(sockets)


def _tune_garbage_collector() -> None:
    """Excludes imported objects from garbage collection, and makes collections less frequent.

    With Python's defaults, parsing a body with millions of lists would block the event loop for many seconds
    of garbage collection.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, GC_PASSES, GC_PASSES)
