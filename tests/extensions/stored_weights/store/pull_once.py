"""Pulls the newest version in a process of its own, and prints by how many bytes its memory has grown.

python -m tests.extensions.stored_weights.store.pull_once URL KEY DIRECTORY SHAPES_AS_JSON
"""

import asyncio
import json
import sys
from pathlib import Path

from contracts.channel import PublicKey
from extensions.stored_weights.store.puller import Puller, PullProgress, PullRules


def most_memory() -> int:
    """Returns the most bytes that this process has had in memory so far."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


async def pull_newest(url: str, key: str, directory: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    puller = Puller("run", [PublicKey(id="key", ed25519=key)], [url], directory, shapes, {}, PullRules())
    latest = await puller.poll()
    manifest = await puller.manifest(latest.version, latest.manifest_sha256)
    await puller.fetch(manifest, PullProgress())
    await puller.close()


if __name__ == "__main__":
    url, key, directory, text = sys.argv[1:]
    shapes = {name: tuple(shape) for name, shape in json.loads(text).items()}
    before = most_memory()
    asyncio.run(pull_newest(url, key, Path(directory), shapes))
    print(most_memory() - before)
