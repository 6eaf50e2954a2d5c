"""A connection to a Redis server, with retries within time limits.

A command may run although its answer is lost, so the commands of `call` must be idempotent. Messages show
only scheme, host, port and database of a URL.
"""

import time
from collections.abc import Callable
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, BusyLoadingError, RedisError
from redis.retry import Retry

from pipelinerl.streams.base import StreamError, StreamFullError, do_nothing

REDIS_VARIABLE = "PIPELINERL_REDIS_URL"  # the server, with its password; the user may set it
RECONNECT_TIMEOUT_S = 60.0  # longest wait for a server that does not answer
LOADING_TIMEOUT_S = 600.0  # longest wait for a server that loads its data
CONNECT_TIMEOUT_S = 5.0  # longest time for one attempt to connect
ANSWER_TIMEOUT_S = 15.0  # longest wait for one answer
BACKOFF = ExponentialBackoff(base=0.01, cap=0.5)  # seconds between two attempts

REFUSALS = (AuthenticationError, AuthorizationError)  # errors that are not retried

Answer = TypeVar("Answer")
State = Literal["ready", "loading", "silent"]


class Connection:
    def __init__(
        self,
        url: str,
        name: str,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        on_wait: Callable[[], object] = do_nothing,
    ):
        """Does not connect yet.

        name: the connection's name in the server's CLIENT LIST.
        on_wait: called after each failed attempt.
        """
        self._on_wait = on_wait
        self.server = without_secrets(url)
        ours = {
            "client_name": name,
            "decode_responses": False,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": answer_timeout_s,
            "retry": Retry(NoBackoff(), 0),
        }
        try:
            pool = redis.ConnectionPool.from_url(url)
            pool.connection_kwargs.update(ours)
            pool.connection_class(**pool.connection_kwargs)  # raises for an unknown option
        except (RedisError, TypeError, ValueError) as error:
            raise StreamError(f"the URL of the Redis server {self.server} is wrong: {error}") from None
        self._client = redis.Redis.from_pool(pool)

    def call(self, command: Callable[[redis.Redis], Answer], within_s: float = RECONNECT_TIMEOUT_S) -> Answer:
        """Returns the command's answer, and retries after connection errors. Raises StreamError."""
        began = time.monotonic()

        def give_up(error: Exception) -> None:
            self._on_wait()
            is_loading = bool(within_s) and isinstance(error, BusyLoadingError)
            longest_s = LOADING_TIMEOUT_S if is_loading else within_s
            if time.monotonic() >= began + longest_s:
                waited = f" within {longest_s:g} s" if longest_s else ""
                raise StreamError(f"no answer from the Redis server {self.server}{waited}: {error}") from None

        try:
            retry = Retry(BACKOFF, retries=-1)
            return retry.call_with_retry(
                lambda: command(self._client), give_up, lambda e: not isinstance(e, REFUSALS)
            )
        except REFUSALS as error:
            raise StreamError(
                f"the Redis server {self.server} refuses the user or password of its URL ({error}); "
                f"give the whole URL in the environment, as {REDIS_VARIABLE}"
            ) from None
        except RedisError as error:
            kind = StreamFullError if _is_full(error) else StreamError
            raise kind(f"the Redis server {self.server} answers: {error}") from error

    def ping(self, within_s: float) -> None:
        self.call(lambda client: client.ping(), within_s)

    def state(self) -> State:
        """Returns the server's state after one attempt. A server that refuses the command is ready."""
        try:
            self._client.ping()
        except BusyLoadingError:
            return "loading"
        except (redis.ConnectionError, redis.TimeoutError):
            return "silent"
        except RedisError:
            return "ready"
        return "ready"

    def close(self) -> None:
        self._client.close()


def without_secrets(url: str) -> str:
    """Returns scheme, host, port and database of a URL. Raises StreamError if it is not a Redis URL."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        port = parts.port or 6379
    except ValueError:
        host = None
    if not host or parts.scheme not in ("redis", "rediss"):
        raise StreamError("the URL of a Redis server is redis://HOST:PORT/DB, or rediss:// with TLS")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}{parts.path}"


def _is_full(error: RedisError) -> bool:
    """Returns True if the server is out of memory, or cannot write to its disk."""
    return isinstance(error, redis.OutOfMemoryError) or str(error).startswith("MISCONF")
