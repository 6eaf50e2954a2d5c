"""Draws what was accepted again: with a trusted server, the run's weights and the ledger's keys."""

import asyncio
import hashlib
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.volunteers.cheater import MODEL
from contracts.support.ports import ReservedPort
from extensions.stored_weights.store.layout import manifest_path
from extensions.stored_weights.store.signing import SigningKey
from extensions.volunteers.gateway.database import Database
from extensions.volunteers.gateway.ledger import sha256_of_ids
from extensions.volunteers.join.local_server import LocalServer
from extensions.volunteers.messages import Member, Run, Task, Weights
from pipelinerl.streams.events import recorded
from pipelinerl.streams.of_run import recorded_streams

AT_ONCE = 128
Batch = tuple[str, int, float, int]  # run, version, temperature, max_tokens


def redraw(run_dir: Path, database: Database, dtype: str = "float32") -> tuple[int, int, int]:
    """Returns the numbers of completions: drawn alike, drawn otherwise, and not drawn.

    Those are not drawn whose prompt is in no stream, or whose weights the store has no longer. dtype: with
    which the trusted server computes.
    """
    return asyncio.run(_redraw(run_dir, database, dtype))


async def _redraw(run_dir: Path, database: Database, dtype: str) -> tuple[int, int, int]:
    prompts = _prompts(run_dir)
    batches: dict[Batch, list[dict]] = defaultdict(list)
    for row in database.each("SELECT body FROM ledger WHERE kind = 'accepted' ORDER BY seq"):
        body = json.loads(row["body"])
        batch = body["run"], body["version"], float(body["temperature"]), body["max_tokens"]
        batches[batch] += body["members"]
    alike = other = unknown = 0
    with tempfile.TemporaryDirectory() as scratch, ReservedPort() as port:
        origin = _origin(run_dir / "weights", port.number)
        module = "inference_adapters.transformers"
        server = LocalServer(sys.executable, module, MODEL, Path(scratch), ["--dtype", dtype])
        try:
            await server.start([f"http://127.0.0.1:{port.number}"])
            for batch in sorted(batches):
                is_stored = (run_dir / "weights" / manifest_path(*batch[:2])).is_file()
                known = [each for each in batches[batch] if each["prompt"] in prompts and is_stored]
                unknown += len(batches[batch]) - len(known)
                if known:
                    await _serve(server, run_dir, batch)
                for begin in range(0, len(known), AT_ONCE):
                    some = known[begin : begin + AT_ONCE]
                    made = await server.make(_task(batch, some, prompts))
                    same = sum(
                        sha256_of_ids(m.token_ids) == e["ids"] for m, e in zip(made, some, strict=True)
                    )
                    alike += same
                    other += len(some) - same
        finally:
            await server.close()
            origin.terminate()
            origin.wait()
    return alike, other, unknown


def _prompts(run_dir: Path) -> dict[str, list[int]]:
    """Returns the recorded prompts by their hashes in the ledger."""
    found = {}
    with recorded_streams(run_dir) as streams:
        for stream in ("rollouts", "eval_rollouts"):
            for record in recorded(streams, stream):
                for completion in record.completions:
                    ids = [int(each) for each in completion.prompt_token_ids]
                    found[sha256_of_ids(ids)] = ids
    return found


def _origin(store: Path, port: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "extensions.stored_weights.store.origin",
        str(store),
        "--port",
        str(port),
    ]
    return subprocess.Popen([*command, "--host", "127.0.0.1"])


async def _serve(server: LocalServer, run_dir: Path, batch: Batch) -> None:
    run, version, *_ = batch
    if server.run != run:
        key = SigningKey.load_or_create(run_dir / "weights.key")
        described = Run("", run, server.sources, [key.public], None, "float32", "", [])
        await server.join_run(described)
    if server.weights is None or server.weights.version != version:
        envelope = (run_dir / "weights" / manifest_path(run, version)).read_bytes()
        sha256 = hashlib.sha256(envelope).hexdigest()
        await server.update(Weights(version, sha256))


def _task(batch: Batch, members: list[dict], prompts: dict[str, list[int]]) -> Task:
    run, version, temperature, max_tokens = batch
    keyed = [Member(prompts[each["prompt"]], each["key"]) for each in members]
    return Task("", run, version, temperature, max_tokens, [], keyed, 600.0)
