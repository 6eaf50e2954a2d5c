"""Publishes weights of the FSDP trainer into a transformers server that is stopped or killed meanwhile.

The publisher is that of a run. Three versions are published: one undisturbed; one in the middle of which the
server is stopped until the broadcast has ended; and one in the middle of which it is killed while another
server joins. After each, the server's scores must be the trainer's. Over gloo and by lent buffers all are on
one GPU; NCCL needs one GPU for the trainer and another for the servers.
"""

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks.gpu_check.machine import device_of
from benchmarks.gpu_check.models import HALF_A_BILLION, TINY, write_model
from benchmarks.gpu_check.outcomes import FailedError, SkippedError
from benchmarks.gpu_check.servers import Server, serving, transformers_command
from benchmarks.gpu_check.trainers import learn, random_batch, started
from contracts.inference import ScoreRequest
from contracts.records import ServerJoined, WeightsPublished
from contracts.support.addresses import LOOPBACK
from contracts.support.sizes import describe_bytes
from contracts.trainer import PackedBatch, TrainerWorker
from contracts.weights import WeightManifest
from pipelinerl.clients.http_session import open_session
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.launched_servers import LaunchedServers
from pipelinerl.training.publishing.base import PublisherContext, publish
from pipelinerl.training.publishing.group import GroupPublisher
from pipelinerl.training.ranks import Ranks
from trainer_adapters.fsdp import FSDPTrainer

STOPPED_S = 8.0  # longer than a bucket may take
BUCKET_S = 5.0
LENGTHS = [24, 17]  # tokens of the sequences that are learnt from and scored
TOLERANCE = 1e-3  # nats, at most, between the server's scores and the trainer's, both in float32


def over_gloo(dry: bool) -> list[str]:
    return _check("gloo", dry)


def over_ipc(dry: bool) -> list[str]:
    return _check("ipc", dry)


def over_nccl(dry: bool) -> list[str]:
    if dry:
        raise SkippedError("NCCL needs GPUs; publication-gloo is the same path")
    if (found := torch.cuda.device_count()) < 2:
        why = f"NCCL refuses two ranks on one GPU, and torch sees {found} GPU(s)"
        raise SkippedError(f"{why}; publication-gloo has the same kill and stop")
    return _check("nccl", dry)


def _check(backend: str, dry: bool) -> list[str]:
    device = device_of(dry)
    servers_gpu = {"CUDA_VISIBLE_DEVICES": "1"} if backend == "nccl" else {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = write_model(folder / "model", TINY if dry else HALF_A_BILLION, torch.float32, device)
        command = transformers_command(model, device, "--dtype", "float32")
        first, second = (stack.enter_context(serving(folder, command, servers_gpu)) for _ in range(2))
        worker = stack.enter_context(started(FSDPTrainer(), model, device))
        trial = Trial(worker, folder / "streams", backend, random_batch(model, LENGTHS, seed=0))
        return trial.run(first, second)


class Trial:
    """One trainer with its publisher."""

    def __init__(self, worker: TrainerWorker, directory: Path, backend: str, batch: PackedBatch):
        self._worker = Interrupted(worker)
        self._batch = batch
        streams = FileStreams(directory)
        self._events = streams.writer("launcher_events")
        self._manifest = worker.weight_manifest("float32")
        self._publisher = GroupPublisher(
            compose_config(settings(backend, self._manifest)),
            PublisherContext(
                run_dir=directory,
                launched=LaunchedServers(streams),
                token=None,
                manifest=self._manifest,
                record=lambda condemned: None,
                needs={},
                address=LOOPBACK,
                buffers=dict,
            ),
            backend,
        )

    def run(self, first: Server, second: Server) -> list[str]:
        """Publishes three versions, and returns a line of each."""
        self._join(first, 1)
        size = describe_bytes(self._manifest.total_bytes)
        lines = [f"{size} undisturbed: {self._publish(0, first, lambda: None)}"]
        lines.append(f"server stopped in the middle: {self._publish(1, first, lambda: stop_for(first))}")

        def kill() -> None:
            first.kill()
            self._join(second, 2)

        lines.append(f"server killed in the middle, another joins: {self._publish(2, second, kill)}")
        self._publisher.close()
        return lines

    def _join(self, server: Server, number: int) -> None:
        name = f"server-{number}"
        self._events.append(
            ServerJoined(number=number, name=name, url=server.url, node="here", engine="transformers")
        )

    def _publish(self, version: int, server: Server, disturb: Callable[[], None]) -> str:
        """Changes the weights, publishes them with a disturbance in the middle, and compares scores."""
        learn(self._worker.worker, self._batch)
        before, _ = self._apart(server)
        if before <= TOLERANCE:
            raise FailedError(f"a step changes scores by {before:.2g} nats, too little to see it arrive")
        self._worker.disturb = disturb
        began = time.monotonic()
        published = publish(self._worker, Ranks(0, 1, 60), self._publisher, version)
        seconds = time.monotonic() - began
        apart, served = self._apart(server)
        if published.servers != [server.url] or served != version or not apart <= TOLERANCE:
            raise FailedError(f"the server serves version {served}, {apart:.2g} nats apart: {published}")
        return describe(published, seconds, apart)

    def _apart(self, server: Server) -> tuple[float, int]:
        """Returns how far the server's scores are from the trainer's at most, in nats, and its version."""
        own = self._worker.worker.forward(self._batch, grad=False).logprobs.cpu()
        bounds = self._batch.cu_seqlens.tolist()
        worst = 0.0
        for (start, end), temperature in zip(pairwise(bounds), self._temperatures(), strict=True):
            token_ids = self._batch.token_ids[start:end].tolist()
            scored = asyncio.run(_scores(server.url, token_ids, temperature))
            found = torch.tensor(scored["logprobs"][0])
            worst = max(worst, float((found - own[start + 1 : end]).abs().max()))
        return worst, scored["version"]

    def _temperatures(self) -> list[float]:
        return self._batch.temperature[self._batch.cu_seqlens[:-1].long()].tolist()


class Interrupted:
    """The worker, whose next gathering of weights is disturbed once, after half of its tensors."""

    def __init__(self, worker: TrainerWorker):
        self.worker = worker
        self.disturb: Callable[[], None] = lambda: None
        self._half = len(worker.weight_manifest("float32").parameters) // 2

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        for number, item in enumerate(self.worker.gather_weights()):
            if number == self._half:
                disturb = self.disturb
                self.disturb = lambda: None
                disturb()
            yield item


def stop_for(server: Server) -> None:
    """Stops the server, and resumes it after `STOPPED_S`."""
    server.stop()
    threading.Timer(STOPPED_S, server.resume).start()


def settings(backend: str, manifest: WeightManifest) -> list[str]:
    """Returns the settings of the run whose publisher it is: eight buckets at least, and short limits."""
    return [
        "inference=transformers",
        f"world.gpus={2 if backend == 'nccl' else 0}",
        f"weights.bucket_bytes={manifest.total_bytes // 8}",
        f"weights.bucket_timeout_s={BUCKET_S}",
        "weights.live_timeout_s=30",
        "weights.rendezvous_timeout_s=30",
    ]


def describe(published: WeightsPublished, seconds: float, apart: float) -> str:
    """Returns how long a publication took, and how exactly the server has the weights."""
    transfer = published.updates[0].transfer_s
    return (
        f"{seconds:.1f} s in all, the transfer that succeeded {transfer:.2f} s, generation paused "
        f"{published.paused_s:.2f} s, scores {apart:.1e} nats apart"
    )


async def _scores(url: str, token_ids: list[int], temperature: float) -> dict:
    request = ScoreRequest(sequences=[token_ids], temperature=temperature).model_dump()
    async with open_session(None) as http, http.post(f"{url}/score", json=request) as answer:
        return await answer.json()
