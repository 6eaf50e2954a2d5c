"""Fetches the run's model before the volunteer's server starts: its configuration, tokenizer and weights."""

import asyncio
import logging
import shutil
from pathlib import Path

import psutil

from contracts.channel import PullProgress
from extensions.stored_weights.store.errors import StoreError
from extensions.stored_weights.store.manifest import VersionManifest
from extensions.stored_weights.store.puller import Puller
from extensions.stored_weights.store.rules import PullRules
from extensions.volunteers.messages import Run

log = logging.getLogger(__name__)

COPIES = 4  # of the weights on disk: this one, and those of the server
IN_MEMORY = 2.5  # times the weights, while a version is loaded beside the last one
BASE_BYTES = 2**30  # of the server's process
RETRY_S = 2.0


class TooLargeError(Exception):
    """The model does not fit into this machine; the message is one line."""


async def fetch_model(run: Run, directory: Path) -> Path:
    """Returns a directory with the newest version of the run as a Hugging Face checkpoint.

    It tries again until a source answers. Raises TooLargeError before anything large is fetched.
    """
    puller = Puller(run.run, run.public_keys, run.sources, directory, None, {}, PullRules())
    try:
        while True:
            try:
                latest = await puller.poll()
                if latest is None:
                    await asyncio.sleep(RETRY_S)
                    continue
                manifest = await puller.manifest(latest.version, latest.manifest_sha256)
                check_room(manifest, directory)
                log.info("fetching version %d: %.1f MB", latest.version, manifest.total_bytes / 1e6)
                assembled = await puller.fetch(manifest, PullProgress())
                puller.keep([latest.version])
                return assembled.directory
            except StoreError as error:
                log.warning("the model could not be fetched, and is tried again: %s", error)
                await asyncio.sleep(RETRY_S)
    finally:
        await puller.close()


def check_room(manifest: VersionManifest, directory: Path) -> None:
    """Raises TooLargeError if disk or memory are too small for the model."""
    needed = COPIES * manifest.total_bytes
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise TooLargeError(f"{directory} has {_gb(free)} free, and the model needs {_gb(needed)}")
    wanted = int(IN_MEMORY * manifest.total_bytes) + BASE_BYTES
    available = psutil.virtual_memory().available
    if available < wanted:
        raise TooLargeError(f"{_gb(available)} of memory are free, and the model needs {_gb(wanted)}")


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
