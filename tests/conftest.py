"""Fixtures and hooks for all tests. Under `make test-engines`, a skipped engine test fails."""

import gc
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelinerl.launcher import terminal
from pipelinerl.paths import ROOT
from tests.meter import Meter, budget

# Tests run in many processes at a time, so one thread each is fastest. It must be set before torch is
# imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Its threads begin again in each forked process, and a process with threads cannot be confined.
os.environ["WANDB_ERROR_REPORTING"] = "false"
# While tests are collected, nothing becomes garbage; looking for it took a third of the time.
gc.disable()


# Background processes of a script ignore Ctrl-C, and so would all launchers that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SKIPPED = 6  # an exit status that pytest itself does not use
LONG_ONES = (  # folders
    "engines",
    "conformance",
    "trainer_adapters",
    "pipeline",
    "islands",
    "stored_weights",
    "outside",
    "viewer",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take long first, so that the processes that test end at about the same time.

    The browser's tests come last: Playwright runs an event loop to the end of a process, beside which other
    tests could not run theirs.
    """
    folders = {item: item.path.parent.name for item in items}
    items.sort(key=lambda item: (folders[item] == "browser", folders[item] not in LONG_ONES))


def pytest_collection_finish() -> None:
    """Leaves what is loaded out of each later garbage collection, which would look at millions of objects."""
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    if "SOAK_PART" not in os.environ:
        config.pluginmanager.register(Meter(budget()))


@pytest.fixture(autouse=True)
def no_launchers_environment() -> Iterator[None]:
    """DeepSpeed sets a rank for its process, and Accelerate would look for other ranks in a later test."""
    yield
    for name in ("LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Restores the signal handlers that a launcher in this process changed, for later runs."""
    handlers = {number: signal.getsignal(number) for number in terminal.SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):  # the process that collects the results decides
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if part := os.environ.get("SOAK_PART"):
        record_soak(part, {name: len(reporter.stats[name]) for name in OUTCOMES if reporter.stats.get(name)})
    if not session.config.getoption("markexpr").startswith("engines"):
        return
    if reporter.stats.get("skipped"):
        reporter.write_line("a skipped test proves nothing: failed", red=True)
        session.exitstatus = SKIPPED


OUTCOMES = ("passed", "failed", "error", "skipped")
SOAK_LOG = ROOT / "tests" / "soak_log.md"


def record_soak(part: str, counts: dict[str, int]) -> None:
    """Appends the line of a part that `make soak` has run. Lines of other parts make no commit dirty."""
    commit = git("describe", "--always", "--exclude=*")
    if git("status", "--porcelain", "--untracked-files=no", "--", f":!{SOAK_LOG.relative_to(ROOT)}"):
        commit += "-dirty"
    outcome = ", ".join(f"{count} {name}" for name, count in counts.items())
    day = time.strftime("%Y-%m-%d")
    with SOAK_LOG.open("a") as log:
        log.write(f"| {day} | {commit} | {os.environ.get('SEED', '0')} | {part} | {outcome} |\n")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the URL of a real server, shared by all tests."""
    from extensions.redis_streams.server import RedisServer

    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yields the directory of an 8 MiB file system. Mounting it needs root, or sudo without a password."""
    directory = tmp_path / "disk"
    directory.mkdir()
    root = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
    options = f"size=8m,uid={os.getuid()}"
    mount = [*root, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    done = subprocess.run(mount, capture_output=True, text=True)
    assert done.returncode == 0, f"a file system that can be filled cannot be mounted: {done.stderr}"
    yield directory
    subprocess.run([*root, "umount", "--lazy", str(directory)], check=True)
