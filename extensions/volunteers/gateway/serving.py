"""Starts the gateway: the engine behind the contract's routes, and the listener for volunteers."""

import asyncio
import contextlib
import json
import secrets
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from time import monotonic

import uvicorn
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from contracts.limits import Limits
from contracts.support.addresses import in_url
from contracts.support.files import write_atomically
from extensions.stored_weights.store.signing import SigningKey
from extensions.volunteers.gateway import ledger
from extensions.volunteers.gateway.address_limits import AddressProtocol, RequestRates
from extensions.volunteers.gateway.database import Database
from extensions.volunteers.gateway.engine import VolunteersEngine
from extensions.volunteers.gateway.models import AuditModels
from extensions.volunteers.gateway.numerics import numerics_of
from extensions.volunteers.gateway.observations import Observations
from extensions.volunteers.gateway.options import GatewayOptions
from extensions.volunteers.gateway.pool import Pool, PoolOptions
from extensions.volunteers.gateway.public_app import PublicRoutes
from extensions.volunteers.gateway.registry import Registry
from extensions.volunteers.gateway.tasks import Tasks
from extensions.volunteers.messages import Run
from inference_adapters.body_limits import BodyLimits
from inference_adapters.http_protocol import limits_here

KEY = "gateway.key"
PLACE = "gateway.json"  # in the state directory: where volunteers reach the gateway
REFUSED = "refused"
LEASES = 3  # of a task, in the timeout of a request
MAX_UPLOAD_BYTES = 2**24
PUBLIC = Limits(
    max_header_bytes=8 * 2**10,
    max_body_bytes=MAX_UPLOAD_BYTES,
    max_generation_bytes=MAX_UPLOAD_BYTES,
    max_connections=1024,
    header_timeout_s=5.0,
    body_timeout_s=30.0,
)


def gateway_of(options: GatewayOptions, off: tuple[str, ...] = ()) -> VolunteersEngine:
    """Returns the engine, with its listener not started. Raises ValueError or OSError.

    off: names of checks that are not made, for tests.
    """
    state = options.state.resolve()
    allowed = numerics_of(options.volunteer_dtype, options.dtype, state)
    database = Database(state)
    ledger.verify(database)
    key = SigningKey.load_or_create(state / KEY)
    (state / REFUSED).mkdir(mode=0o700, exist_ok=True)
    pool = Pool(
        Registry(database),
        Tasks(options.request_timeout_s / LEASES, monotonic),
        allowed,
        PoolOptions(options.behind, options.task_size, options.uploads, state / REFUSED),
    )
    models = AuditModels(options.model, options.dtype, options.device, options.behind)
    observations = Observations(state, (options.volunteer_dtype, options.dtype)) if options.observe else None
    engine = VolunteersEngine(options.model, models, pool, allowed, observations, off)
    engine.open_public = partial(_listening, engine, key, options)
    return engine


@contextlib.asynccontextmanager
async def _listening(
    engine: VolunteersEngine, key: SigningKey, options: GatewayOptions
) -> AsyncIterator[None]:
    """Serves volunteers while the block runs."""
    life = secrets.token_hex(8)
    routes = PublicRoutes(engine.pool, key, life, partial(_run, engine, key, life, options))
    listener = _listener(options)
    port = listener.getsockname()[1]
    scheme = "https" if options.certificate else "http"
    url = options.public_url or f"{scheme}://{in_url(options.public_host)}:{port}"
    place = {"url": url, "port": port, "public_key": key.public.ed25519}
    write_atomically(options.state.resolve() / PLACE, json.dumps(place).encode() + b"\n", 0o600)
    server = _PublicServer(_config(routes.app(), options))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    print(f"volunteers reach the gateway at {url}", flush=True)
    try:
        yield
    finally:
        server.should_exit = True
        server.force_exit = True
        await asyncio.wait([serving])


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
    return listener


def _config(app: ASGIApp, options: GatewayOptions) -> uvicorn.Config:
    limits = limits_here(PUBLIC)
    wrapped: ASGIApp = RequestRates(BodyLimits(app, limits, most_receiving=4 * MAX_UPLOAD_BYTES))
    if options.behind_proxy:
        wrapped = ProxyHeadersMiddleware(wrapped, trusted_hosts=options.behind_proxy)
    return uvicorn.Config(
        wrapped,
        http=partial(AddressProtocol, Counter(), limits),
        ws="none",
        lifespan="off",
        proxy_headers=False,
        h11_max_incomplete_event_size=limits.max_header_bytes,
        timeout_keep_alive=30,
        log_level="error",
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
    )


class _PublicServer(uvicorn.Server):
    """A second server in the process, which leaves the signals to the first one."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def check_certificate(options: GatewayOptions) -> None:
    """Raises ValueError if the certificate cannot be used."""
    if options.certificate:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(options.certificate, options.key)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"--certificate {options.certificate}: {error}") from None


def _run(engine: VolunteersEngine, key: SigningKey, life: str, options: GatewayOptions) -> Run:
    channel = engine.channel
    return Run(
        gateway=key.public.ed25519,
        life=life,
        run=channel.run if channel else "",
        epoch=channel.epoch if channel else 0,
        sources=options.public_sources or (list(channel.sources) if channel else []),
        public_keys=list(channel.public_keys) if channel else [],
        version=engine.pool.newest,
        behind=options.behind,
        task_size=options.task_size,
        dtype=options.volunteer_dtype,
        end_token_ids=engine.end_token_ids,
    )
