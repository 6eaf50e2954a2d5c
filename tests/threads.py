"""What the kernel says of a thread, for tests in which it must wait."""

import threading
from pathlib import Path

from tests.pipeline.runs import wait_for


def wait_until_it_waits(thread: int) -> None:
    """Returns once the thread of this native id sleeps: for a lock, for news, or for its turn."""
    stat = Path(f"/proc/self/task/{thread}/stat")
    wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")


def wait_until_it_waits_or_ends(thread: threading.Thread) -> None:
    """As `wait_until_it_waits`, of a thread that may have ended."""
    while thread.is_alive():
        try:
            return wait_until_it_waits(thread.native_id)
        except FileNotFoundError:
            continue
