"""Which attention kernels torch uses. A package of the same name stands in for FlashAttention-3."""

import subprocess
import sys

import pytest
import torch

from trainer_adapters.flash_attention import has_flash_attention_3

KERNELS = """
from torch import library
kernels = library.Library("flash_attn_3", "DEF")
kernels.define("fwd(Tensor q) -> Tensor")
kernels.define("bwd(Tensor q) -> Tensor")
"""
PROGRAM = """
import logging, sys, torch
sys.path.append({folder!r})
from trainer_adapters.flash_attention import prefer_flash_attention_3
logging.basicConfig(level=logging.INFO)
torch.cuda.get_device_capability = lambda device: (9, 0)
prefer_flash_attention_3(torch.device("cuda"))
print(torch.nn.attention.current_flash_attention_impl())
"""
TORCH = torch.__version__


@pytest.mark.parametrize(
    ("device", "capability", "package", "version", "has"),
    [
        ("cuda", (9, 0), KERNELS, TORCH, True),
        ("cuda", (8, 0), KERNELS, TORCH, False),
        ("cpu", (9, 0), KERNELS, TORCH, False),
        ("cuda", (9, 0), None, TORCH, False),
        ("cuda", (9, 0), KERNELS, torch.torch_version.TorchVersion("2.11.0+cu130"), False),
    ],
    ids=["Hopper", "Ampere", "a CPU", "not installed", "an older torch"],
)
def test_where_it_can_run(monkeypatch, tmp_path, device, capability, package, version, has):
    if package is not None:
        (tmp_path / "flash_attn_interface.py").write_text(package)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch, "__version__", version)
    assert has_flash_attention_3(torch.device(device)) is has


def test_torch_uses_it_where_it_is_installed_and_2_where_it_is_broken(tmp_path):
    assert used_with(tmp_path, KERNELS) == "FA3"
    assert used_with(tmp_path, "raise ImportError('no libcudart')", warning="no libcudart") == "None"


def used_with(tmp_path, package: str, warning: str = "") -> str:
    """Returns what torch uses in a process of its own, because the choice holds for a process."""
    (tmp_path / "flash_attn_interface.py").write_text(package)
    program = PROGRAM.format(folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert warning in done.stderr
    return done.stdout.strip()
