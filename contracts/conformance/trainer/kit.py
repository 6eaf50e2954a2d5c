"""The guarantees of the trainer contract, and `check_trainer`, which checks them on an adapter."""

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.guarantees import (
    t1_forward,
    t2_gradient,
    t3_step,
    t4_weights,
    t5_resume,
    t6_uneven,
    t7_memory,
    t9_shards,
    t10_periods,
)
from contracts.conformance.trainer.models import make_model
from contracts.conformance.trainer.recording_worker import import_adapter
from contracts.conformance.verdicts import Guarantee, Verdict
from contracts.trainer import TrainerWorker

CHECKS: dict[Guarantee, Callable[[Bench], str]] = {
    Guarantee("T1", "forward"): t1_forward.check,
    Guarantee("T2", "gradient"): t2_gradient.check,
    Guarantee("T3", "step"): t3_step.check,
    Guarantee("T4", "manifest = iteration"): t4_weights.check,
    Guarantee("T5", "resume"): t5_resume.check,
    Guarantee("T6", "uneven data"): t6_uneven.check,
    Guarantee("T7", "memory"): t7_memory.check,
    Guarantee("T9", "shards"): t9_shards.check,
    Guarantee("T10", "periods"): t10_periods.check,
}
GUARANTEES = tuple(CHECKS)


def check_trainer(
    adapter: str,
    *,
    ranks: int = 2,
    options: dict[str, object] | None = None,
    model: str | None = None,
    only: Iterable[str] | None = None,
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
        patience_s: the longest time that one session of the ranks may take, in seconds.

    Raises ValueError, with a message of one line, if nothing can be checked.
    """
    wanted = _wanted(only)
    _check_input(ranks, model, device, patience_s)
    trains_low_rank = _made(adapter, options or {}).trains_low_rank
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        root = Path(folder)
        models = (model,) if model else _tiny_models(root)
        verdicts = []
        for guarantee in wanted:
            directory = root / guarantee.code
            directory.mkdir()
            bench = Bench(
                adapter, options or {}, ranks, device, patience_s, directory, models, trains_low_rank
            )
            verdicts.append(_try(guarantee, bench))
        return verdicts


def _try(guarantee: Guarantee, bench: Bench) -> Verdict:
    began = time.monotonic()
    try:
        measured = CHECKS[guarantee](bench)
    except Exception as error:  # any error that an incorrect adapter causes is a verdict
        return Verdict.of_failure(guarantee, error, time.monotonic() - began)
    return Verdict(guarantee, "pass", measured, time.monotonic() - began)


def _wanted(only: Iterable[str] | None) -> list[Guarantee]:
    codes = list(only) if only is not None else [g.code for g in GUARANTEES]
    known = {g.code for g in GUARANTEES}
    if unknown := [code for code in codes if code not in known]:
        raise ValueError(f"no guarantee {unknown[0]}: they are {', '.join(g.code for g in GUARANTEES)}")
    return [g for g in GUARANTEES if g.code in codes]


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
