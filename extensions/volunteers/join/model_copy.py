"""Fetches the run's model before the volunteer's server starts: its configuration, tokenizer and weights."""

import logging
import shutil
from pathlib import Path

import psutil

from contracts.channel import PullProgress
from extensions.stored_weights.store.manifest import VersionManifest
from extensions.stored_weights.store.puller import Puller
from extensions.stored_weights.store.rules import PullRules
from extensions.volunteers.messages import Run

log = logging.getLogger(__name__)

DATA = (".json", ".jinja", ".txt", ".model", ".md")  # names of model files
COPIES = 4  # of the weights on disk: this one, and those of the server
IN_MEMORY = 2.5  # times the weights, while a version is loaded beside the last one
BASE_BYTES = 2**30  # of the server's process


class UnsafeError(Exception):
    """The model has files that a volunteer does not take; the message is one line."""


class TooLargeError(Exception):
    """The model does not fit into this machine; the message is one line."""


async def fetch_model(run: Run, directory: Path) -> Path:
    """Returns a directory with the gateway's version of the run as a Hugging Face checkpoint.

    Raises StoreError if no source has it; UnsafeError and TooLargeError before anything large is fetched.
    """
    puller = Puller(run.run, run.public_keys, run.sources, directory, None, {}, PullRules())
    try:
        manifest = await puller.manifest(run.weights.version, run.weights.manifest_sha256)
        check_files(manifest)
        check_room(manifest, directory)
        log.info("fetching version %d: %.1f MB", manifest.version, manifest.total_bytes / 1e6)
        assembled = await puller.fetch(manifest, PullProgress())
        puller.keep([manifest.version])
        return assembled.directory
    finally:
        await puller.close()


def check_files(manifest: VersionManifest) -> None:
    """Raises UnsafeError for a file that is no data: a gateway must not bring programs to a volunteer."""
    for file in manifest.model_files:
        if not file.name.endswith(DATA):
            raise UnsafeError(f"the run's model has a file {file.name}, which a volunteer does not take")


def check_room(manifest: VersionManifest, directory: Path) -> None:
    """Raises TooLargeError if disk or memory are too small for the model."""
    here = sum(path.stat().st_size for path in directory.parent.rglob("*.safetensors"))  # of earlier starts
    needed = COPIES * manifest.total_bytes
    free = shutil.disk_usage(directory).free + here
    if free < needed:
        raise TooLargeError(f"{directory} has {_gb(free)} free, and the model needs {_gb(needed)}")
    wanted = int(IN_MEMORY * manifest.total_bytes) + BASE_BYTES
    available = psutil.virtual_memory().available
    if available < wanted:
        raise TooLargeError(f"{_gb(available)} of memory are free, and the model needs {_gb(wanted)}")


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
