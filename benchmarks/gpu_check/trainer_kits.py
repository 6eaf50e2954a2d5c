"""The trainer kit, T1 to T7, T9 and T10, on the backends of this project; dry, one guarantee on a CPU."""

from functools import partial

import torch

from benchmarks.gpu_check.machine import device_of
from benchmarks.gpu_check.outcomes import SkippedError
from benchmarks.gpu_check.verdicts import side_by_side
from contracts.conformance.trainer.kit import GUARANTEES, check_trainer
from contracts.conformance.trainer.recording_worker import import_adapter
from contracts.conformance.verdicts import Verdict

PATIENCE_S = 240.0  # for one session: a backend may compile kernels in it


def fsdp(dry: bool) -> list[str]:
    return _check("trainer_adapters.fsdp.FSDPTrainer", 1, dry)


def deepspeed(dry: bool) -> list[str]:
    return _check("trainer_adapters.deepspeed.DeepSpeedTrainer", 1, dry)


def deepspeed_of_stage_3(dry: bool) -> list[str]:
    return _check("trainer_adapters.deepspeed.DeepSpeedTrainer", 1, dry, zero_stage=3)


def fsdp_of_two_ranks(dry: bool) -> list[str]:
    return _check("trainer_adapters.fsdp.FSDPTrainer", 2, dry)


def deepspeed_of_two_ranks(dry: bool) -> list[str]:
    return _check("trainer_adapters.deepspeed.DeepSpeedTrainer", 2, dry)


def _check(adapter: str, ranks: int, dry: bool, **options: object) -> list[str]:
    if missing := import_adapter(adapter)().missing:
        raise SkippedError(missing)
    if not dry and (found := torch.cuda.device_count()) < ranks:
        raise SkippedError(f"{ranks} ranks need a GPU each, and torch sees {found}")
    codes = ["T6"] if dry else [guarantee.code for guarantee in GUARANTEES]
    check = partial(_check_one, adapter, ranks, options, device_of(dry))
    return side_by_side(check, codes, at_once=len(codes))


def _check_one(adapter: str, ranks: int, options: dict[str, object], device: str, code: str) -> list[Verdict]:
    return check_trainer(
        adapter, ranks=ranks, options=options, only=[code], device=device, patience_s=PATIENCE_S
    )
