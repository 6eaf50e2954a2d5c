"""Transfers that end early, and what is fetched again."""

import asyncio
import json
import math
import sys

import numpy as np
import pytest

from extensions.stored_weights.conformance.faults import STALLED
from extensions.stored_weights.store.puller import PullProgress
from extensions.stored_weights.store.signing import SigningKey
from tests.extensions.stored_weights.store.builders import SHAPES, new_writer, publish, some_weights
from tests.extensions.stored_weights.store.http_source import HttpSource
from tests.extensions.stored_weights.store.pulling import as_bytes, content, pull, pulling, total_bytes

pytestmark = pytest.mark.asyncio


async def start_pull(tmp_path, source, shapes=SHAPES):
    """Starts a process that pulls the newest version."""
    key = SigningKey.load_or_create(tmp_path / "run.key").public.ed25519
    return await asyncio.create_subprocess_exec(
        *[
            sys.executable,
            "-m",
            "tests.extensions.stored_weights.store.pull_once",
            source.url,
            key,
            tmp_path / "weights",
        ],
        json.dumps(shapes),
        stdout=asyncio.subprocess.PIPE,
    )


async def test_what_a_cancelled_fetch_and_a_killed_process_left_is_resumed(tmp_path):
    writer = new_writer(tmp_path / "store")
    published = publish(writer, 1, some_weights())
    writer.close()
    async with HttpSource(tmp_path / "store") as source:
        source.fault = STALLED
        async with pulling(tmp_path, source) as puller:
            progress = PullProgress()
            task = asyncio.create_task(pull(puller, published, progress))
            while not progress.bytes_done:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        part = tmp_path / "weights" / "parts" / published.manifest.full.files[0].sha256
        cancelled_at = part.stat().st_size
        process = await start_pull(tmp_path, source)
        while part.stat().st_size < 1.1 * cancelled_at:
            await asyncio.sleep(0.01)
        process.kill()
        await process.communicate()
        source.fault = None
        async with pulling(tmp_path, source) as puller:
            assert content(await pull(puller, published)) == as_bytes(some_weights())
        assert source.sent_bytes <= 1.1 * total_bytes(published)


async def test_memory_is_bounded_whatever_the_size_of_the_model(tmp_path):
    shapes = {f"layer.{number}": (2**20,) for number in range(48)}
    weights = (
        (name, "bfloat16", shape, np.full(2**21, number, np.uint8))
        for number, (name, shape) in enumerate(shapes.items())
    )
    writer = new_writer(tmp_path / "store", file_bytes=16 * 2**20)
    writer.publish(writer.write_full_files(1, weights), 1)
    writer.close()
    async with HttpSource(tmp_path / "store") as source:
        process = await start_pull(tmp_path, source, shapes)
        output, _ = await process.communicate()
    assert int(output) < 64 * 2**20 < sum(math.prod(shape) * 2 for shape in shapes.values())
