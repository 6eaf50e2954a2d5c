"""A run's own Redis server, which listens on one address and stores its data in `<run_dir>/redis`.

The server ends with the thread that started it. Each `RedisServer` has a new password. Processes of the run
get it in their environment, and commands from the file `url`, which only the user can read. A lock prevents a
second server with the same data.
"""

import fcntl
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from contracts.support.addresses import LOOPBACK, in_url
from contracts.support.die_with_parent import die_with_parent
from contracts.support.files import write_atomically
from contracts.support.ports import ReservedPort
from extensions.redis_streams.connection import (
    LOADING_TIMEOUT_S,
    RECONNECT_TIMEOUT_S,
    REDIS_VARIABLE,
    Connection,
)
from pipelinerl.streams.base import StreamBusyError, StreamError

CONFIGURATION = """
bind {address}
port {port}
requirepass {password}
tcp-keepalive 10
appendonly yes
appendfsync everysec
save ""
"""
ASK_TIMEOUT_S = 5.0  # longest wait for the server's state
POLL_S = 0.02
STOP_TIMEOUT_S = 30.0  # time for the server to save its data before it is killed


class RedisServer:
    """A Redis server that runs in its context. `url` is valid before, and the same in every context."""

    command = ("redis-server", "-")  # the configuration is on stdin, because command lines are public

    def __init__(self, directory: Path, address: str = LOOPBACK):
        self._directory = directory
        self.log = directory / "log"
        self._address = address
        self._port = ReservedPort(address)
        self._password = secrets.token_urlsafe(24)
        self.url = f"redis://:{self._password}@{in_url(address)}:{self._port.number}/0"
        self._connection = Connection(self.url, "launcher", ASK_TIMEOUT_S)

    @property
    def missing(self) -> str | None:
        """How to install the server's program, or None if it is installed."""
        if shutil.which(self.command[0]):
            return None
        return (
            "streams=redis: there is no redis-server on the PATH; install it (`apt-get install "
            f"redis-server`), or point {REDIS_VARIABLE} at a server"
        )

    def __enter__(self) -> "RedisServer":
        if self.missing:
            raise StreamError(self.missing)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = (self._directory / "lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise StreamBusyError(
                f"a Redis server runs over {self._directory}: the run is alive, or being read"
            ) from None
        (self._directory / "url").unlink(missing_ok=True)  # left by a killed server
        self.start()
        try:
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        write_atomically(self._directory / "url", self.url, mode=0o600)
        return self

    def __exit__(self, *_: object) -> None:
        (self._directory / "url").unlink(missing_ok=True)
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._lock.close()

    def start(self) -> None:
        """Starts the process. May be called again after the process has ended."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self._directory,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[self._lock.fileno()],  # the server process holds the lock too
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGKILL),
            )
        configuration = CONFIGURATION.format(
            address=self._address, port=self._port.number, password=self._password
        )
        with self._process.stdin as stdin:
            stdin.write(configuration.encode())

    @property
    def status(self) -> int | None:
        """The exit status of the process (negative: a signal), or None while it runs."""
        return self._process.poll()

    @property
    def last_words(self) -> str:
        """The last line of the log, or "" if it is empty."""
        return "".join(self.log.read_text(errors="replace").strip().splitlines()[-1:])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + LOADING_TIMEOUT_S
        while self._connection.state() != "ready":
            if self.status is not None or time.monotonic() > deadline:
                raise StreamError(f"redis-server did not start; see {self.log} ({self.last_words})")
            time.sleep(POLL_S)


@contextmanager
def served(directory: Path, within_s: float = RECONNECT_TIMEOUT_S) -> Iterator[str]:
    """Yields the URL of the running server with these data, or of one that is started for the block.

    Waits for a server that is starting or ending. Raises StreamBusyError if that takes too long.
    """
    own = RedisServer(directory)
    deadline = time.monotonic() + within_s
    with ExitStack() as stack:
        while (url := _entered_or_running(own, directory, stack)) is None:
            if time.monotonic() > deadline:
                raise StreamBusyError(
                    f"the Redis server over {directory} has not answered for {within_s:g} s: try again"
                )
            time.sleep(POLL_S)
        yield url


def _entered_or_running(own: RedisServer, directory: Path, stack: ExitStack) -> str | None:
    """Returns the URL of `own`, or of another server with these data; None if that does not answer."""
    try:
        return stack.enter_context(own).url
    except StreamBusyError:
        try:
            url = (directory / "url").read_text()
        except FileNotFoundError:
            return None
        return None if Connection(url, "reader", ASK_TIMEOUT_S).state() == "silent" else url
