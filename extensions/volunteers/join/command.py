"""Joins a run as a volunteer.

    python -m extensions.volunteers join LINK

The command asks the gateway of the invite link for tasks. It makes them with a server of its own on this
machine, whose weights follow the run's. Ctrl-C gives the task back and ends the command. To go on later,
start the command again in the same directory, without the link.
"""

import argparse
import asyncio
import json
import logging
import platform
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from contracts.support.files import write_atomically
from contracts.support.messages import printable
from contracts.support.terminal import print_any_text
from extensions.stored_weights.store.errors import StoreError
from extensions.stored_weights.store.signing import SigningKey
from extensions.volunteers.join.gateway_client import AwayError, GatewayClient, RefusedError
from extensions.volunteers.join.local_server import LocalServer, ServerError
from extensions.volunteers.join.model_copy import TooLargeError, UnsafeError
from extensions.volunteers.join.volunteer import AGAIN, FIRST_PAUSE_S, LONGEST_PAUSE_S, PutOutError, Volunteer
from extensions.volunteers.link import Link, link_of
from extensions.volunteers.messages import MAX_ROOM, Run, Standing
from pipelinerl.clients.http_session import open_session

log = logging.getLogger(__name__)

ENGINES = ("transformers", "vllm")
KEY = "volunteer.key"
GATEWAY = "gateway.json"  # in the directory: where the volunteer is registered


def join(argv: Sequence[str]) -> None:
    """Works for a run. Exits with a one-line message if that cannot go on."""
    print_any_text()
    args = _parser().parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, datefmt="%H:%M:%S")
    try:
        asyncio.run(_work(args))
    except (
        ValueError,
        OSError,
        PutOutError,
        RefusedError,
        AwayError,
        ServerError,
        TooLargeError,
        UnsafeError,
        StoreError,
    ) as error:
        sys.exit(f"join: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("ended; start it again in this directory to go on", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m extensions.volunteers join",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("link", nargs="?", help="invite link, https://HOST/#TOKEN; at the first start")
    directory = "of key and weights, one for each machine; by default ./volunteer"
    parser.add_argument("--directory", type=Path, default=Path("volunteer"), help=directory)
    engine = "adapter of its own server; by default %(default)s"
    parser.add_argument("--engine", choices=ENGINES, default="transformers", help=engine)
    parser.add_argument("--python", help="interpreter of the engine, for example .venv-vllm/bin/python")
    parser.add_argument(
        "--room", type=int, default=16, help="completions that it makes at one time; by default 16"
    )
    parser.add_argument(
        "--server-option",
        action="append",
        default=[],
        metavar="=OPTION",
        help="an option of its server, for example --server-option=--device=cuda; may be repeated",
    )
    return parser


async def _work(args: argparse.Namespace) -> None:
    if not 1 <= args.room <= MAX_ROOM:
        raise ValueError(f"--room {args.room}: 1 to {MAX_ROOM}")
    args.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = SigningKey.load_or_create(args.directory / KEY)
    link = _link(args)
    task = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with open_session(None) as session:
        gateway = GatewayClient(session, link.url, link.gateway, key)
        standing = await _registered(gateway, link)
        if link.secret:
            _keep(args.directory, link)
        print(
            f"volunteer {standing.volunteer} ({printable(standing.label)}) works for {link.url}", flush=True
        )

        def make_server(model: Path, run: Run) -> LocalServer:
            options = ["--dtype", run.dtype, *args.server_option]
            module = f"inference_adapters.{args.engine}"
            python = args.python or sys.executable
            return LocalServer(python, module, model, args.directory / "weights", options, run.commitments)

        await Volunteer(gateway, args.directory, make_server, args.room).work()


async def _registered(gateway: GatewayClient, link: Link) -> Standing:
    """Registers with the link, or says hello again. It waits for a gateway that is away."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            await gateway.run()
            if link.secret:
                return await gateway.register(link.secret, *_software())
            return await gateway.me()
        except AwayError as error:
            log.warning("%s; tried again in %.1f s", error, pause_s)
        except RefusedError as error:
            if error.word not in AGAIN:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _link(args: argparse.Namespace) -> Link:
    """Returns the link of the command line, or of an earlier start, without a secret. Raises ValueError."""
    path = args.directory / GATEWAY
    if args.link:
        return link_of(args.link)
    try:
        kept = json.loads(path.read_text())
        return Link(kept["url"], kept["gateway"], "")
    except (OSError, ValueError, KeyError):
        raise ValueError(f"{args.directory} is not registered with a run: give the invite link") from None


def _keep(directory: Path, link: Link) -> None:
    kept = json.dumps({"url": link.url, "gateway": link.gateway})
    write_atomically(directory / GATEWAY, kept.encode() + b"\n", 0o600)


def _software() -> tuple[str, str]:
    return f"pipelinerl {version('pipelinerl')}", f"{platform.machine()} {platform.processor()}".strip()
