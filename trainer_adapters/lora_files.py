"""What a trainer with low-rank adapters writes: of which base model they are, and the adapters by themselves.

A checkpoint has the adapters and no base model. So it also has a fingerprint of that model and the settings
of the adapters. `HuggingFaceTrainer` compares both with its own before it loads anything else.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers import PreTrainedModel

from contracts.trainer import LowRank
from trainer_adapters.lora import ADAPTER, LoRA

KEY = "lora"  # of the description in a checkpoint


def fingerprint(model: PreTrainedModel, rank: int, device: torch.device) -> str:
    """Returns a SHA-256 of the names and values of all parameters, which rank 0 computes for all ranks."""
    digest = hashlib.sha256()
    if rank == 0:
        for name, parameter in model.named_parameters():
            digest.update(f"{name} {tuple(parameter.shape)}".encode())
            digest.update(parameter.detach().contiguous().view(torch.uint8).numpy())
    shared = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8).to(device)
    dist.broadcast(shared, src=0)
    return bytes(shared.tolist()).hex()


def description(lora: LoRA, adapted: Iterable[str], base: str) -> torch.Tensor:
    """Returns what a checkpoint says of its adapters and of the weights that they adapt, as JSON in bytes."""
    targets = sorted({name.split(".")[-2] for name in adapted})
    said = {"rank": lora.rank, "alpha": float(lora.alpha), "targets": targets, "base": base}
    return torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)


def difference(own: torch.Tensor | None, stored: torch.Tensor | None) -> str | None:
    """Returns how a checkpoint's adapters differ from the trainer's own, or None if they do not.

    Each is a `description`, or None without adapters.
    """
    if own is None or stored is None:
        if own is stored:
            return None
        return f"was written with {_settings(stored)}, and this trainer has {_settings(own)}"
    ours, theirs = (json.loads(bytes(each.tolist())) for each in (own, stored))
    for name in ("rank", "alpha", "targets"):
        if ours[name] != theirs[name]:
            said, own_said = (
                ", ".join(each) if isinstance(each, list) else f"{each:g}"
                for each in (theirs[name], ours[name])
            )
            return f"was written with lora.{name}={said}, and this trainer has {own_said}"
    return None if ours["base"] == theirs["base"] else "has the adapters of another base model"


def _settings(told: torch.Tensor | None) -> str:
    if told is None:
        return "lora=null"
    said = json.loads(bytes(told.tolist()))
    return f"lora={{rank: {said['rank']}, alpha: {said['alpha']:g}}}"


def save_adapter(
    model: PreTrainedModel, factors: dict[str, LowRank], model_path: str, directory: Path
) -> None:
    """Writes the adapters in peft's own format, as adapters of the model at `model_path`."""
    directory.mkdir()
    tensors = {}
    for name, factor in factors.items():
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        tensors[f"{layer}.lora_A.weight"] = factor.a.cpu().contiguous()
        tensors[f"{layer}.lora_B.weight"] = factor.b.cpu().contiguous()
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.peft_config[ADAPTER]
    config.base_model_name_or_path = model_path
    config.inference_mode = True
    config.target_modules = sorted(config.target_modules)
    config.save_pretrained(directory)
