"""T4: the manifest matches the iteration; every parameter occurs exactly once, and is exported."""

from dataclasses import dataclass
from pathlib import Path

import torch

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.guarantees.t4_buffers import buffers
from contracts.conformance.trainer.guarantees.t4_export import check_export
from contracts.conformance.trainer.guarantees.t4_items import DOING, Gathered, check_complete, check_values
from contracts.conformance.trainer.models import with_narrow_config
from contracts.conformance.trainer.rank_programs import Factors, accumulate, factor_copies
from contracts.conformance.trainer.recording_worker import RecordingWorker
from contracts.conformance.trainer.sequences import LENGTHS, Step, make_sequences, split_evenly
from contracts.conformance.verdicts import GuaranteeError
from contracts.trainer import OptimizerSpec, WorkerSpec
from contracts.weights import WeightManifest

DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True)
class Result:
    """The observations of one rank."""

    manifests: list[WeightManifest]  # one for each dtype, in the order of DTYPES
    iterations: list[list[Gathered]]  # two of the loaded weights, and one after a step
    changed: list[str]  # names of tensors that changed before their iteration ended
    factors: Factors  # low-rank factors after the step, on rank 0


def gather(worker: RecordingWorker, spec: WorkerSpec, step: Step, directory: Path) -> Result:
    """Returns the manifests, two iterations over the loaded weights, and one after an optimizer step.

    The gradient exists before the second iteration. The weights after the step are exported before they are
    gathered, and replace an export of the loaded weights.
    """
    manifests = [worker.weight_manifest(dtype) for dtype in DTYPES]
    changed: list[str] = []
    first = _iteration(worker, changed)
    accumulate(worker, spec, step)
    iterations = [first, _iteration(worker, changed)]
    worker.export(directory)
    worker.step()
    worker.export(directory)
    iterations.append(_iteration(worker, changed))
    manifests.append(worker.weight_manifest(DTYPES[0]))
    return Result(manifests, iterations, changed, factor_copies(worker))


def _iteration(worker: RecordingWorker, changed: list[str]) -> list[Gathered]:
    """Returns copies of all items, and adds to `changed` the names of tensors that do not stay valid."""
    items = []
    copies = []
    for name, tensor in worker.gather_weights():
        items.append((name, tensor))
        copies.append(_kept(name, tensor))
    for (name, tensor), copy in zip(items, copies, strict=True):
        if tensor is not None and copy.tensor is not None and not torch.equal(tensor.cpu(), copy.tensor):
            changed.append(name)
    return copies


def _kept(name: str, tensor: torch.Tensor | None) -> Gathered:
    if tensor is None:
        return Gathered(name, None, True)
    return Gathered(name, tensor.detach().to("cpu", copy=True), tensor.is_contiguous())


def weights(bench: Bench) -> str:
    """Gathers and exports the weights of every model, and checks manifest, order, values and export."""
    counts = []
    for number, model in enumerate(bench.models):
        directory = bench.directory / f"export-{number}"
        reference = bench.reference(model)
        sequences = make_sequences(model, [*LENGTHS, *[4] * bench.ranks], seed=4)
        step = Step("a share for everyone", split_evenly(sequences, bench.ranks))
        given = with_narrow_config(model, bench.directory / "narrow") if number == 0 else model
        results = bench.session(gather, given, OptimizerSpec(lr=1e-2), step, directory, doing=DOING)
        *loaded, stepped = results[0].iterations
        for rank, result in enumerate(results):
            _check_manifests(result.manifests, results[0].manifests, rank)
            for iteration in result.iterations:
                _check_order(result.manifests[0], iteration)
        _check_ranks([result.iterations for result in results])
        check_complete(reference, stepped, results[0].manifests[0])
        check_values(reference, loaded)
        _check_kept(results[0].changed)
        before, after = ({one.name: one.tensor for one in iteration} for iteration in (loaded[0], stepped))
        reference.trained(after, results[0].factors)
        check_export(model, directory, before, after)
        counts.append(f"{len(stepped)} ({len(results[0].manifests[0].tied)} tied)")
    return (
        "manifest, iteration, checkpoint and, after a step, export agree in all parameters: "
        f"{' and '.join(counts)}"
    )


PARTS = {"weights": weights, "buffers": buffers}


def _check_manifests(manifests: list[WeightManifest], first: list[WeightManifest], rank: int) -> None:
    """Checks that manifests have the requested dtypes, and differ in nothing else."""
    for manifest, dtype in zip(manifests, [*DTYPES, DTYPES[0]], strict=True):
        if wrong := [p for p in manifest.parameters if p.dtype != dtype]:
            raise GuaranteeError(
                f"manifest says {wrong[0].dtype} of {wrong[0].name}", f"{dtype}, which was asked for", DOING
            )
    shapes = [[(p.name, p.shape) for p in manifest.parameters] for manifest in (*manifests, first[0])]
    if any(other != shapes[0] for other in shapes) or any(m.tied != first[0].tied for m in manifests):
        raise GuaranteeError(
            f"the manifests of rank {rank} differ in more than the dtype",
            "the same names, shapes and ties on every rank and after a step",
            DOING,
        )


def _check_kept(changed: list[str]) -> None:
    if changed:
        raise GuaranteeError(
            f"{changed[0]} changes once it was yielded",
            "tensors that stay until the iteration ends",
            DOING,
        )


def _check_order(manifest: WeightManifest, iteration: list[Gathered]) -> None:
    listed = [p.name for p in manifest.parameters]
    names = [one.name for one in iteration]
    if sorted(listed) == sorted(names) and listed != names:
        place = next(i for i, pair in enumerate(zip(listed, names, strict=True)) if pair[0] != pair[1])
        raise GuaranteeError(
            f"the order differs: item {place} is {names[place]} where the manifest has {listed[place]}",
            "gather_weights yields in the manifest's order",
            DOING,
        )
    if listed != names:
        odd = sorted(set(listed) ^ set(names)) or sorted(names)
        raise GuaranteeError(
            f"only one of manifest and iteration has {odd[0]}", "the same names in both", DOING
        )


def _check_ranks(ranks: list[list[list[Gathered]]]) -> None:
    names = [one.name for one in ranks[0][0]]
    for rank, iterations in enumerate(ranks):
        for iteration in iterations:
            if [one.name for one in iteration] != names:
                raise GuaranteeError(f"rank {rank} yields other names than rank 0", "lockstep", DOING)
            for one in iteration:
                if (one.tensor is None) == (rank == 0):
                    found = "None" if one.tensor is None else "a tensor"
                    raise GuaranteeError(
                        f"rank {rank} yields {found} for {one.name}",
                        "the tensor on rank 0, None elsewhere",
                        DOING,
                    )
