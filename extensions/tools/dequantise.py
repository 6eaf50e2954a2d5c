"""Writes a bfloat16 copy of a model that is published in fp8 or mxfp4, such as DeepSeek-V3 or gpt-oss.

    python -m extensions.tools.dequantise MODEL --out DIR

A trainer needs weights whose values are the numbers themselves. Names stay as published, and all other files
are copied. Each file of weights is converted in memory, one after the other.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from contracts.support.command_line import command_parser
from contracts.support.complete_directory import complete_directory
from contracts.support.messages import one_line
from extensions.tools.merge import Weights
from pipelinerl.errors import PlanError

INDEX = "model.safetensors.index.json"
SCALES = {"fp8": "_scale_inv", "mxfp4": "_scales"}  # suffix of the scales, by `quant_method`
BLOCKS = "_blocks"  # suffix of the codes of mxfp4


def dequantise(model: Path, out: Path) -> None:
    """Writes the copy. Raises PlanError if `out` exists, or for another kind of quantisation."""
    if out.exists():
        raise PlanError(f"{out} exists and is never overwritten; choose a new directory")
    try:
        config = json.loads((model / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise PlanError(f"{model} is no directory of a model: {one_line(error)}") from error
    quantisation = config.pop("quantization_config", None) or {}
    method = quantisation.get("quant_method")
    if method not in SCALES:
        raise PlanError(f"{model} is quantised by {method}; this command reads {' and '.join(SCALES)} alone")
    config["dtype"] = "bfloat16"
    config.pop("torch_dtype", None)
    with ExitStack() as opened, complete_directory(out) as directory:
        weights = Weights(model, opened)
        for file in model.iterdir():
            if file.is_file() and file not in weights.files and file.name not in (INDEX, "config.json"):
                shutil.copy(file, directory)
        places = {}
        for file in weights.files:
            tensors = dict(_dequantised(file, weights, method, quantisation.get("weight_block_size")))
            save_file(tensors, directory / file.name, metadata={"format": "pt"})
            places |= dict.fromkeys(tensors, file.name)
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        if len(weights.files) > 1:
            (directory / INDEX).write_text(
                json.dumps({"metadata": {}, "weight_map": places}, indent=2) + "\n"
            )


def _dequantised(
    file: Path, weights: Weights, method: str, block: list[int] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of a file in bfloat16. A tensor's scales may be in another file."""
    suffix = SCALES[method]
    with safe_open(file, framework="pt") as tensors:
        names = [name for name in tensors.keys() if not name.endswith(suffix)]  # noqa: SIM118 - no mapping
    for name in names:
        plain = name.removesuffix(BLOCKS) if method == "mxfp4" else name
        scales = weights[plain + suffix] if plain + suffix in weights.names else None
        if scales is None:
            tensor = weights[name]
            yield name, tensor.bfloat16() if tensor.is_floating_point() else tensor
        elif method == "mxfp4":
            yield plain, convert_moe_packed_tensors(weights[name], scales, dtype=torch.bfloat16).contiguous()
        else:
            yield name, _times_blocks(weights[name].float(), scales.float(), block).bfloat16()


def _times_blocks(codes: torch.Tensor, scales: torch.Tensor, block: list[int] | None) -> torch.Tensor:
    """Returns codes [..., R, C] times the scale of their block, or of the whole tensor without blocks."""
    if block is None or scales.dim() < 2:
        return codes * scales
    for dimension, size in zip((-2, -1), block, strict=True):
        scales = scales.repeat_interleave(size, dim=dimension)
    rows, columns = codes.shape[-2:]
    return codes * scales[..., :rows, :columns]


def main() -> None:
    parser = command_parser("extensions.tools.dequantise", __doc__)
    parser.add_argument("model", help="directory, or org/name on the Hugging Face hub")
    parser.add_argument("--out", type=Path, required=True, help="new directory for the copy")
    options = parser.parse_args()
    try:
        given = Path(options.model)
        dequantise(given if given.is_dir() else Path(snapshot_download(options.model)), options.out)
    except (OSError, ValueError, PlanError) as error:
        sys.exit(f"dequantise: {one_line(error)}")
    print(options.out)


if __name__ == "__main__":
    main()
