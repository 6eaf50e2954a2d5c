"""T7: peak memory of forward and backward does not grow with vocabulary × length.

Gathering holds only a few weights at a time.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.models import make_model
from contracts.conformance.trainer.recording_worker import RecordingWorker
from contracts.conformance.trainer.sequences import make_sequences, objective
from contracts.conformance.verdicts import GuaranteeError
from contracts.records import TrainingSequence
from contracts.trainer import OptimizerSpec, PackedBatch, WorkerSpec

VOCABULARY = 12_000
SHORT = 2048  # tokens of the smaller pack
LONG = 3584  # tokens of the larger pack
LENGTH = 64  # tokens of each sequence, few enough that attention needs little memory
ALLOWED = 0.4  # copies of the additional logits; one in bfloat16 counts 0.5, and activations less
LAYERS = 24  # equal layers, each about 4 % of the weights
ALLOWED_GATHERED = 0.4  # share of all weights; two copies of a layer and the next layer are 0.2
MIB = 2**20
LEARNING = {  # (entropies are requested, the loss uses them)
    "forward(entropy=False) and backward": (False, False),
    "forward(entropy=True) and backward": (True, True),
    "forward(entropy=True) and backward of a loss without entropies": (True, False),
}
SCORING = {
    "forward(entropy=False, grad=False)": (False,),
    "forward(entropy=True, grad=False)": (True,),
}


@dataclass(frozen=True)
class Measured:
    """The bytes that one rank allocated in addition to those held before."""

    learning: dict[str, list[int]]  # peaks of each pack's forward and backward, by the keys of LEARNING
    scoring: dict[str, list[int]]  # peaks of each pack's forward with grad=False, by the keys of SCORING


def measure(worker: RecordingWorker, spec: WorkerSpec, packs: list[list[TrainingSequence]]) -> Measured:
    """Measures all packs but the first, a small one that allocates gradients and buffers."""
    _learn(worker, packs[0], True, True)

    def peaks(work: Callable[..., None], cases: Mapping[str, tuple[bool, ...]]) -> dict[str, list[int]]:
        return {
            name: [peak_bytes(spec.device, partial(work, worker, pack, *case)) for pack in packs[1:]]
            for name, case in cases.items()
        }

    return Measured(peaks(_learn, LEARNING), peaks(_probe, SCORING))


def _probe(worker: RecordingWorker, pack: list[TrainingSequence], entropy: bool) -> None:
    worker.forward(PackedBatch.pack(pack), grad=False, entropy=entropy)


def _learn(worker: RecordingWorker, pack: list[TrainingSequence], entropy: bool, in_loss: bool) -> None:
    """Runs forward and backward. Keeps the scores until then, like a learner that reports entropy."""
    batch = PackedBatch.pack(pack)
    scores = worker.forward(batch, entropy=entropy)
    worker.backward(objective(scores, batch, in_loss))


def peak_bytes(device: str, work: Callable[[], None]) -> int:
    """Returns the peak bytes that torch allocated; resident memory would include fragmentation."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - held
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    changes = [e.nbytes() for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(itertools.accumulate(changes), default=0)


def gather(worker: RecordingWorker, spec: WorkerSpec) -> tuple[int, int]:
    """Returns the peak bytes of two iterations, beyond those held before, and the bytes of all tensors.

    Memory that an iteration does not free counts too.
    """
    yielded = 0

    def iterate() -> None:
        nonlocal yielded
        yielded = 0
        for _, tensor in worker.gather_weights():
            yielded += 0 if tensor is None else tensor.nbytes

    def iterate_twice() -> None:
        iterate()
        iterate()

    return peak_bytes(spec.device, iterate_twice), yielded


def gathering(bench: Bench) -> str:
    """Measures the memory of gathering the weights."""
    model = make_model(bench.directory / "deep", tied=False, layers=LAYERS)
    doing = f"for _ in worker.gather_weights(): pass; a model of {LAYERS} equal layers"
    results = bench.session(gather, model, OptimizerSpec(lr=1e-3), doing=doing)
    total = results[0][1]
    shares = [peak / total if total else 0.0 for peak, _ in results]
    rank = max(range(len(shares)), key=shares.__getitem__)
    measured = f"gather_weights holds {shares[rank]:.2f} of all weights at once"
    if not shares[rank] <= ALLOWED_GATHERED:
        right = f"a layer at a time: with {LAYERS} layers at most {ALLOWED_GATHERED} of all weights"
        raise GuaranteeError(f"{measured} on rank {rank}", right, doing)
    return measured


def scoring(bench: Bench) -> str:
    """Measures the memory of forward and backward."""
    model = make_model(bench.directory / "wide", tied=False, layers=1, vocabulary=VOCABULARY)
    packs = [make_sequences(model, [LENGTH] * (tokens // LENGTH), 8) for tokens in (LENGTH, SHORT, LONG)]
    sizes = f"{SHORT} and of {LONG} tokens, vocabulary {VOCABULARY}"
    doing = f"forward and backward of {sizes}, without and with entropies; the same with grad=False"
    results = bench.session(measure, model, OptimizerSpec(lr=1e-3), packs, doing=doing)
    for name in SCORING:
        _check_growth([result.scoring[name] for result in results], f"{name} of {sizes}")
    measured = [
        _check_growth([result.learning[name] for result in results], f"{name} of {sizes}")
        for name in LEARNING
    ]
    return measured[1]


PARTS = {"gathering": gathering, "scoring": scoring}  # the much faster one first


def _check_growth(peaks: list[list[int]], doing: str) -> str:
    logits = (LONG - SHORT) * VOCABULARY * 4
    shares = [(many - few) / logits for few, many in peaks]
    rank = max(range(len(shares)), key=shares.__getitem__)
    few, many = peaks[rank]
    measured = (
        f"peak {few / MIB:.0f} MiB at {SHORT} tokens, {many / MIB:.0f} MiB at {LONG}: grows by "
        f"{shares[rank]:.2f} of the added logits ({logits / MIB:.0f} MiB)"
    )
    if not shares[rank] <= ALLOWED:
        right = f"at most {ALLOWED} of one copy of the added [T, vocabulary] logits, on every rank"
        raise GuaranteeError(measured + ": the full logits are held", right, doing)
    return measured
