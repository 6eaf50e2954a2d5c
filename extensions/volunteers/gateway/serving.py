"""Starts the gateway: the engine behind the contract's routes, and the listener for volunteers."""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from time import monotonic

import uvicorn
from starlette.types import ASGIApp
from transformers import PreTrainedModel
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from contracts.limits import Limits
from contracts.support.addresses import in_url
from contracts.support.files import write_atomically
from extensions.stored_weights.store.signing import SigningKey
from extensions.volunteers.gateway import ledger
from extensions.volunteers.gateway.address_limits import PublicBodies, RequestRates
from extensions.volunteers.gateway.audit import Auditor
from extensions.volunteers.gateway.database import Database
from extensions.volunteers.gateway.engine import VolunteersEngine
from extensions.volunteers.gateway.listener import OF_ADDRESS, Listener
from extensions.volunteers.gateway.models import AuditModels
from extensions.volunteers.gateway.numerics import CALIBRATION, numerics_of
from extensions.volunteers.gateway.observations import Observations
from extensions.volunteers.gateway.options import GatewayOptions
from extensions.volunteers.gateway.pool import Pool, TaskRules
from extensions.volunteers.gateway.public_app import PublicRoutes
from extensions.volunteers.gateway.registry import Registry
from extensions.volunteers.gateway.uploads import Uploads, most_upload_bytes
from extensions.volunteers.messages import Run
from inference_adapters.http_protocol import limits_here

KEY = "gateway.key"
LOCK = "gateway.lock"
PLACE = "gateway.json"  # in the state directory: where volunteers reach the gateway
REFUSED = "refused"
LEASES = 3  # of a task, in the timeout of a request
MAX_UPLOAD_BYTES = 2**24
MAX_RECEIVING_BYTES = 2**27  # of all uploads at one time; only volunteers with a task have any
OTHERS = 4096  # connections of the contract's port
PUBLIC = Limits(
    max_header_bytes=8 * 2**10,
    max_body_bytes=MAX_UPLOAD_BYTES,
    max_generation_bytes=MAX_UPLOAD_BYTES,
    max_connections=1024,
    header_timeout_s=5.0,
    body_timeout_s=120.0,
)


def gateway_of(
    options: GatewayOptions, off: tuple[str, ...] = (), clock: Callable[[], float] = monotonic
) -> VolunteersEngine:
    """Returns the engine, with its listener not started. Raises ValueError or OSError.

    off: names of checks that are not made, for tests. clock: returns monotonic seconds.
    """
    state = options.state.resolve()
    _context(options)  # raises its errors before anything else
    dtypes = (options.volunteer_dtype, options.dtype)
    config = _sha256_of_config(options.model)
    allowed = numerics_of(dtypes, config, state)
    if options.needs_calibration and not (state / CALIBRATION).is_file():
        raise ValueError(
            f"--volunteer-dtype {options.volunteer_dtype} for strangers needs {state / CALIBRATION}: start "
            "it with --observe and volunteers of your own first"
        )
    if options.require and not options.observe and allowed.activations is None:
        raise ValueError(
            f"--require {options.require} needs {state / CALIBRATION} with them: start it with --observe, "
            f"--require {options.require} and volunteers of your own first"
        )
    database = Database(state)
    ledger.verify(database)
    key = SigningKey.load_or_create(state / KEY)
    (state / REFUSED).mkdir(mode=0o700, exist_ok=True)
    rules = TaskRules(options.behind, partial(_most_members, options.task_size))
    pool = Pool(Registry(database), options.request_timeout_s / LEASES, rules, clock)
    models = AuditModels(options.model, options.dtype, options.device, options.behind)
    observations = Observations(state, dtypes, config, allowed) if options.observe else None

    def make_uploads(model: PreTrainedModel, ends: list[int]) -> Uploads:
        vocabulary = model.get_input_embeddings().num_embeddings
        hidden = model.get_output_embeddings().in_features if options.require else None
        auditor = Auditor(models, allowed, vocabulary, ends, hidden, observations, off)
        return Uploads(pool, auditor, allowed, state / REFUSED, options.uploads)

    engine = VolunteersEngine(options.model, models, pool, make_uploads)
    engine.open_public = partial(_listening, engine, key, options)
    return engine


def _most_members(task_size: int, max_tokens: int) -> int:
    """Returns the most completions of a task whose upload is not too large, at least one."""
    each = most_upload_bytes(1, max_tokens) - most_upload_bytes(0, max_tokens)
    return max(1, min(task_size, (MAX_UPLOAD_BYTES - most_upload_bytes(0, max_tokens)) // each))


@contextlib.asynccontextmanager
async def _listening(
    engine: VolunteersEngine, key: SigningKey, options: GatewayOptions
) -> AsyncIterator[None]:
    """Serves volunteers while the block runs. Raises OSError if another gateway uses the state directory."""
    state = options.state.resolve()
    life = secrets.token_hex(8)
    describe = partial(_run, engine, life, _sha256_of_config(options.model), options)
    routes = PublicRoutes(engine.pool, engine.uploads, key, life, describe)
    with locked(state):
        listener = _listener(options)
        port = listener.getsockname()[1]
        scheme = "https" if options.certificate else "http"
        url = options.public_url or f"{scheme}://{in_url(options.public_host)}:{port}"
        place = {"url": url, "port": port, "public_key": key.public.ed25519}
        write_atomically(state / PLACE, json.dumps(place).encode() + b"\n", 0o600)
        serving = asyncio.create_task(_public_server(routes, engine, options).serve(listener))
        serving.add_done_callback(partial(_ended, engine))
        print(f"volunteers reach the gateway at {url}", flush=True)
        try:
            yield
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            listener.close()


def _ended(engine: VolunteersEngine, serving: "asyncio.Task[None]") -> None:
    engine.failure = "the listener for volunteers has ended"


@contextlib.contextmanager
def locked(state: Path) -> Iterator[None]:
    """Keeps other gateways from using the state directory. Raises OSError if one does."""
    with (state / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"another gateway uses {state}: give it another --state") from None
        yield


def _listener(options: GatewayOptions) -> socket.socket:
    """Raises OSError, with the address in its message."""
    family = socket.AF_INET6 if ":" in options.public_host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.public_host, options.public_port))
    except OSError as error:
        listener.close()
        where = f"{options.public_host}:{options.public_port}"
        raise OSError(error.errno, f"cannot listen for volunteers at {where}: {error.strerror}") from None
    listener.listen(256)
    listener.setblocking(False)
    return listener


def _public_server(routes: PublicRoutes, engine: VolunteersEngine, options: GatewayOptions) -> Listener:
    limits = limits_here(PUBLIC.model_copy(update={"max_connections": PUBLIC.max_connections + OTHERS}))
    limits.max_connections = max(1, min(PUBLIC.max_connections, limits.max_connections - OTHERS))
    most_receiving = MAX_RECEIVING_BYTES
    wrapped: ASGIApp = PublicBodies(routes.app(), limits, most_receiving, engine.uploads.most_bytes)
    wrapped = RequestRates(wrapped)
    if options.behind_proxy:
        wrapped = ProxyHeadersMiddleware(wrapped, trusted_hosts=options.behind_proxy)
    config = uvicorn.Config(
        wrapped,
        ws="none",
        lifespan="off",
        proxy_headers=False,
        h11_max_incomplete_event_size=limits.max_header_bytes,
        timeout_keep_alive=30,
        log_level="error",
    )
    config.load()
    of_address = None if options.behind_proxy else OF_ADDRESS  # all connections are the proxy's
    return Listener(config, limits, _context(options), of_address)


def _context(options: GatewayOptions) -> ssl.SSLContext | None:
    """Returns the TLS context of the certificate, if there is one. Raises ValueError."""
    if options.certificate is None:
        return None
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.certificate, options.key)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"--certificate {options.certificate}: {error}") from None
    return context


def _sha256_of_config(model: str) -> str:
    return hashlib.sha256(Path(model, "config.json").read_bytes()).hexdigest()


def _run(engine: VolunteersEngine, life: str, model: str, options: GatewayOptions) -> Run:
    channel = engine.channel
    return Run(
        life=life,
        run=channel.run if channel else "",
        sources=options.public_sources or (list(channel.sources) if channel else []),
        public_keys=list(channel.public_keys) if channel else [],
        weights=engine.pool.weights if channel and channel.run == engine.pool.run else None,
        dtype=options.volunteer_dtype,
        model=model,
        end_token_ids=engine.end_token_ids,
        commitments=options.require == "commitments",
    )
