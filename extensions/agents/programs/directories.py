"""The directories of programs: what they hold, and how they are removed, whatever a program did to them."""

import asyncio
import os
from collections import deque
from contextlib import suppress

PREFIX = "pipelinerl-agents-"  # of the directory of all programs; the number of the service follows
MOST_FILES = 50_000  # and directories
BLOCK = 512  # bytes


class TooMuchError(Exception):
    """A directory holds too much. The message says what."""


def check_size(directory: str, most_bytes: int) -> None:
    """Raises TooMuchError if a directory holds more, too many files, or what cannot be looked at."""
    size = files = 0
    left = deque([directory])
    while left:
        try:
            with os.scandir(left.popleft()) as entries:
                for entry in entries:
                    files += 1
                    size += _size(entry, left)
        except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
            pass
        except OSError as error:
            raise TooMuchError(f"its directory cannot be looked at: {error.strerror}") from error
        if size > most_bytes:
            raise TooMuchError(f"its directory holds more than {most_bytes} bytes (domain.agent.disk_bytes)")
        if files > MOST_FILES:
            raise TooMuchError(f"its directory holds more than {MOST_FILES} files")


def _size(entry: os.DirEntry[str], left: deque[str]) -> int:
    """Returns the bytes of an entry. Adds a directory to those that are left to look at."""
    try:
        if entry.is_dir(follow_symlinks=False):
            left.append(entry.path)
        return entry.stat(follow_symlinks=False).st_blocks * BLOCK
    except FileNotFoundError:
        return 0


def stale_directories(parent: str) -> list[str]:
    """Returns the directories that services of this user left when they were killed."""
    found = []
    for entry in os.scandir(parent):
        number = entry.name.removeprefix(PREFIX).partition("-")[0]
        if not entry.name.startswith(PREFIX) or not number.isdecimal():
            continue
        with suppress(FileNotFoundError):
            is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if is_ours and not os.path.exists(f"/proc/{number}"):
                found.append(entry.path)
    return found


async def remove(directory: str) -> None:
    """Removes a directory, however deep it is, and whatever its modes are."""
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        if not os.path.exists(directory):
            return
        quiet = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL}
        process = await asyncio.create_subprocess_exec(*command, "--", directory, **quiet)
        await process.wait()
