"""Writes a bfloat16 copy of a model that is published in fp8 or mxfp4, such as DeepSeek-V3 or gpt-oss.

    python -m extensions.tools.dequantise MODEL --out DIR

A trainer needs weights whose values are the numbers themselves. Names stay as published, tensors without
scales keep their dtype, and all other files are copied. Files of weights are converted one by one, in memory.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from contracts.support.command_line import command_parser
from contracts.support.complete_directory import complete_directory
from contracts.support.messages import one_line
from extensions.tools.merge import Weights
from pipelinerl.errors import PlanError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SCALES = {"fp8": "_scale_inv", "mxfp4": "_scales"}  # suffix of the scales, by `quant_method`
BLOCKS = "_blocks"  # suffix of the codes of mxfp4
OF_ACTIVATIONS = (".activation_scale", ".input_scale")  # suffixes of scales that bfloat16 needs none of
CODES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int8)
FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]  # of a repository


def dequantise(model: Path, out: Path) -> None:
    """Writes the copy. Raises PlanError if `out` exists, or for another kind of quantisation."""
    if out.exists():
        raise PlanError(f"{out} exists and is never overwritten; choose a new directory")
    config, method, block = _described(model)
    files = _weight_files(model)
    with ExitStack() as opened, complete_directory(out) as directory:
        weights = Weights(model, opened)
        for path in model.iterdir():
            if path.is_dir():
                shutil.copytree(path, directory / path.name)
            elif path.suffix != ".safetensors" and path.name not in (INDEX, "config.json"):
                shutil.copy(path, directory)
        places = {}
        for file in files:
            tensors = dict(_dequantised(file, weights, method, block))
            save_file(tensors, directory / file.name, metadata={"format": "pt"})
            places |= dict.fromkeys(tensors, file.name)
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        if files != [model / SINGLE]:
            (directory / INDEX).write_text(
                json.dumps({"metadata": {}, "weight_map": places}, indent=2) + "\n"
            )


def _described(model: Path) -> tuple[dict[str, Any], str, tuple[int, int] | None]:
    """Returns the configuration of the copy, the kind of quantisation, and the size of its blocks."""
    try:
        config = json.loads((model / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise PlanError(f"{model} is no directory of a model: {one_line(error)}") from error
    found = config.pop("quantization_config", None) if isinstance(config, dict) else None
    if not isinstance(found, dict):
        raise PlanError(f"{model}/config.json has no quantization_config: there is nothing to convert")
    method = found.get("quant_method")
    if method not in SCALES:
        raise PlanError(f"{model} is quantised by {method}; this command reads {' and '.join(SCALES)} alone")
    block = found.get("weight_block_size")
    if block is not None and (not isinstance(block, list) or len(block) != 2):
        raise PlanError(f"{model}/config.json: weight_block_size is {block}, and not two numbers")
    config["dtype"] = "bfloat16"
    config.pop("torch_dtype", None)
    return config, method, block and tuple(block)


def _weight_files(model: Path) -> list[Path]:
    """Returns the files that transformers loads. Raises PlanError if one is not there."""
    names = [SINGLE]
    if not (model / SINGLE).is_file():
        try:
            names = sorted(set(json.loads((model / INDEX).read_bytes())["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise PlanError(f"{model} has neither {SINGLE} nor {INDEX}: {one_line(error)}") from error
    if missing := [name for name in names if not (model / name).is_file()]:
        raise PlanError(f"{model} lacks {missing[0]}, which {INDEX} names")
    return [model / name for name in names]


def _dequantised(
    file: Path, weights: Weights, method: str, block: tuple[int, int] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of a file. Those without scales keep their dtype; scales may be in another file."""
    suffix = SCALES[method]
    with safe_open(file, framework="pt") as tensors:
        names = list(tensors.keys())
    for name in names:
        if name.endswith((suffix, *OF_ACTIVATIONS)):
            continue
        plain = name.removesuffix(BLOCKS) if method == "mxfp4" else name
        tensor = weights[name]
        if plain + suffix not in weights.names:
            if tensor.dtype in CODES:
                raise PlanError(
                    f"{name} in {file} has codes without {suffix}, in a form that is not known here"
                )
            yield name, tensor
        elif method == "mxfp4":
            scales = weights[plain + suffix]
            yield plain, convert_moe_packed_tensors(tensor, scales, dtype=torch.bfloat16).contiguous()
        else:
            yield name, _times_blocks(name, tensor.float(), weights[plain + suffix].float(), block).bfloat16()


def _times_blocks(
    name: str, codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int] | None
) -> torch.Tensor:
    """Returns codes [..., R, C] times the scale of their block, or of the whole tensor without blocks."""
    if scales.numel() == 1:
        return codes * scales.flatten()
    rows, columns = codes.shape[-2:]
    wanted = block and (-(-rows // block[0]), -(-columns // block[1]))
    if not wanted or tuple(scales.shape[-2:]) != wanted:
        raise PlanError(f"{name} has scales {list(scales.shape)}, which do not fit blocks of {block}")
    for dimension, size in zip((-2, -1), block, strict=True):
        scales = scales.repeat_interleave(size, dim=dimension)
    return codes * scales[..., :rows, :columns]


def main() -> None:
    parser = command_parser("extensions.tools.dequantise", __doc__)
    parser.add_argument("model", help="directory, or org/name on the Hugging Face hub")
    parser.add_argument("--out", type=Path, required=True, help="new directory for the copy")
    options = parser.parse_args()
    try:
        given = Path(options.model)
        there = given if given.is_dir() else Path(snapshot_download(options.model, allow_patterns=FILES))
        dequantise(there, options.out)
    except (OSError, ValueError, SafetensorError, PlanError) as error:
        sys.exit(f"dequantise: {one_line(error)}")
    print(options.out)


if __name__ == "__main__":
    main()
