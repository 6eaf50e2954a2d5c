"""The description of low-rank adapters in a checkpoint, and their export in peft's format.

A checkpoint contains adapters without the base model. So it also contains the settings of the adapters and a
fingerprint of the base model. `HuggingFaceTrainer` compares both with its own before it loads a checkpoint.
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

KEY = "lora"  # key of the description in a checkpoint


def fingerprint(model: PreTrainedModel, rank: int, device: torch.device) -> str:
    """Returns a SHA-256 of names and values of all parameters. Rank 0 computes it. It is a collective."""
    digest = hashlib.sha256()
    if rank == 0:
        for name, parameter in model.named_parameters():
            digest.update(f"{name} {tuple(parameter.shape)}".encode())
            digest.update(parameter.detach().contiguous().view(torch.uint8).numpy())
    shared = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8).to(device)
    dist.broadcast(shared, src=0)
    return bytes(shared.tolist()).hex()


def description(lora: LoRA, adapted: Iterable[str], base: str) -> torch.Tensor:
    """Returns the settings of the adapters and the base model's fingerprint, as a uint8 tensor of JSON."""
    targets = sorted({name.split(".")[-2] for name in adapted})
    settings = {"rank": lora.rank, "alpha": float(lora.alpha), "targets": targets, "base": base}
    return torch.frombuffer(bytearray(json.dumps(settings).encode()), dtype=torch.uint8)


def difference(own: torch.Tensor | None, stored: torch.Tensor | None) -> str | None:
    """Returns a message if a checkpoint's description differs from the trainer's, else None.

    Each is a `description`, or None without adapters.
    """
    if own is None or stored is None:
        if own is stored:
            return None
        return f"was written with {_settings(stored)}, and this trainer has {_settings(own)}"
    ours, theirs = (json.loads(bytes(each.tolist())) for each in (own, stored))
    for name in ("rank", "alpha", "targets"):
        if ours[name] != theirs[name]:
            their_value, our_value = (
                ", ".join(each) if isinstance(each, list) else f"{each:g}"
                for each in (theirs[name], ours[name])
            )
            return f"was written with lora.{name}={their_value}, and this trainer has {our_value}"
    return None if ours["base"] == theirs["base"] else "has the adapters of another base model"


def _settings(described: torch.Tensor | None) -> str:
    if described is None:
        return "lora=null"
    settings = json.loads(bytes(described.tolist()))
    return f"lora={{rank: {settings['rank']}, alpha: {settings['alpha']:g}}}"


def save_adapter(
    model: PreTrainedModel, factors: dict[str, LowRank], model_path: str, directory: Path
) -> None:
    """Writes the adapters in peft's format, as adapters of the model at `model_path`."""
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
