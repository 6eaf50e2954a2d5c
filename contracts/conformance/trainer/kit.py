"""The guarantees of the trainer contract, and `check_trainer`, which checks them on an adapter."""

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from contracts.conformance.parts import Parts, chosen
from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.guarantees import (
    t1_forward,
    t2_gradient,
    t3_step,
    t4_weights,
    t5_resume,
    t6_uneven,
    t7_memory,
    t8_offload,
    t9_shards,
    t10_periods,
)
from contracts.conformance.trainer.models import make_model
from contracts.conformance.trainer.recording_worker import import_adapter
from contracts.conformance.verdicts import Guarantee, NotDeclaredError, Verdict
from contracts.trainer import TrainerWorker

Part = Callable[[Bench], str]  # the check of a part; it returns what it measured

CHECKS: dict[Guarantee, Parts[Part]] = {
    Guarantee("T1", "forward"): t1_forward.PARTS,
    Guarantee("T2", "gradient"): t2_gradient.PARTS,
    Guarantee("T3", "step"): t3_step.PARTS,
    Guarantee("T4", "manifest = iteration"): t4_weights.PARTS,
    Guarantee("T5", "resume"): t5_resume.PARTS,
    Guarantee("T6", "uneven data"): t6_uneven.PARTS,
    Guarantee("T7", "memory"): t7_memory.PARTS,
    Guarantee("T8", "offload"): t8_offload.PARTS,
    Guarantee("T9", "shards"): t9_shards.PARTS,
    Guarantee("T10", "periods"): t10_periods.PARTS,
}
GUARANTEES = tuple(CHECKS)


def check_trainer(
    adapter: str,
    *,
    ranks: int = 2,
    options: dict[str, object] | None = None,
    model: str | None = None,
    only: Iterable[str] | None = None,
    part: str | None = None,
    device: str = "cpu",
    patience_s: float = 120,
) -> list[Verdict]:
    """Checks each guarantee, or those in `only`, and returns one verdict for each, in order.

        adapter: `package.module.Class`, importable in a new process with this one's `sys.path`.
        ranks: number of processes; with one, sums over ranks and idle ranks cannot be tried.
        options: arguments of its constructor.
        model: a Hugging Face model directory, small and float32; None makes a tied Qwen2 and an untied Llama,
            both tiny.
        only: codes of guarantees; None means all.
        part: a part of the one guarantee in `only`, which is checked alone.
        patience_s: the longest time that one session of the ranks may take, in seconds.

    Raises ValueError, with a message of one line, if nothing can be checked.
    """
    wanted = chosen(CHECKS, only, part)
    _check_input(ranks, model, device, patience_s)
    trains_low_rank = _made(adapter, options or {}).trains_low_rank
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        root = Path(folder)
        models = (model,) if model else _tiny_models(root)
        verdicts = []
        for guarantee, parts in wanted.items():
            directory = root / guarantee.code
            directory.mkdir()
            bench = Bench(
                adapter, options or {}, ranks, device, patience_s, directory, models, trains_low_rank
            )
            verdicts.append(_try(guarantee, parts, bench))
        return verdicts


def _try(guarantee: Guarantee, parts: Parts[Part], bench: Bench) -> Verdict:
    began = time.monotonic()
    measured = []
    missing = []
    for part, check in parts.items():
        try:
            measured.append(check(bench))
        except NotDeclaredError as error:
            missing.append(str(error))
        except Exception as error:  # any error that an incorrect adapter causes is a verdict
            return Verdict.of_failure(guarantee, part, error, time.monotonic() - began)
    return Verdict.of_parts(guarantee, parts, measured, missing, time.monotonic() - began)


def _check_input(ranks: int, model: str | None, device: str, patience_s: float) -> None:
    if ranks < 1:
        raise ValueError(f"a trainer has at least one rank, not {ranks}")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"the device is cpu or cuda, not {device!r}")
    if device == "cuda" and (found := torch.cuda.device_count()) < ranks:
        raise ValueError(f"{ranks} rank(s) on cuda need a GPU each, and torch sees {found}")
    if not patience_s > 0:
        raise ValueError(f"the patience is a positive number of seconds, not {patience_s:g}")
    if model is not None and not (Path(model) / "config.json").is_file():
        raise ValueError(f"{model} is not a Hugging Face model directory: it has no config.json")


def _made(adapter: str, options: dict[str, object]) -> TrainerWorker:
    trainer = import_adapter(adapter)
    try:
        return trainer(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{adapter} cannot be made with the options {options}: {error}") from error


def _tiny_models(root: Path) -> tuple[str, ...]:
    return tuple(make_model(root / name, tied=name == "tied") for name in ("tied", "untied"))
