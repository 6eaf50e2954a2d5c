"""Averages the weights of two models of the same shape, such as a model of long and one of short answers.

    python -m extensions.tools.merge LONG SHORT --out DIR [--weight 0.5]

Each tensor is (1 − weight) · first + weight · second, computed in float32 and stored in the dtype of the
first model. All other files, such as tokenizer and configuration, are the first model's.
Source: model merging of Kimi k1.5, arXiv 2501.12599, §2.4.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import AutoConfig

from contracts.support.command_line import command_parser
from contracts.support.complete_directory import complete_directory
from pipelinerl.errors import PlanError

WEIGHTS = "*.safetensors"
OTHER_KEYS = {  # keys of a configuration that may differ, because they do not change the computation
    "_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache",
    "bos_token_id", "eos_token_id", "pad_token_id",
}  # fmt: skip


class Weights:
    """The tensors of a model directory, read one at a time."""

    def __init__(self, directory: Path, opened: ExitStack):
        self.files = sorted(directory.glob(WEIGHTS))
        if not self.files:
            raise PlanError(f"{directory} has no weights: a .safetensors file")
        self._of: dict[str, safe_open] = {}
        for file in self.files:
            try:
                tensors = opened.enter_context(safe_open(file, framework="pt"))
            except SafetensorError as error:
                raise PlanError(f"{file} cannot be read: {error}") from error
            self._of |= dict.fromkeys(tensors.keys(), tensors)

    @property
    def names(self) -> set[str]:
        return set(self._of)

    def shape(self, name: str) -> list[int]:
        return self._of[name].get_slice(name).get_shape()

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._of[name].get_tensor(name)


def merge(first: Path, second: Path, out: Path, weight: float) -> None:
    """Writes the mean of two models to a new directory. Raises PlanError if they are incompatible."""
    if not 0 <= weight <= 1:
        raise PlanError(f"--weight is from 0 to 1, not {weight:g}")
    if out.exists():
        raise PlanError(f"{out} exists and is never overwritten; choose a new directory")
    with ExitStack() as opened:
        one, other = (Weights(directory, opened) for directory in (first, second))
        _check_alike(first, second)
        _check_tensors(one, other)
        with complete_directory(out) as directory:
            for file in first.iterdir():
                if file.is_file() and file not in one.files:
                    shutil.copy(file, directory)
            for file in one.files:
                save_file(
                    dict(_merged(file, one, other, weight)), directory / file.name, metadata={"format": "pt"}
                )


def _merged(file: Path, one: Weights, other: Weights, weight: float) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(file, framework="pt") as tensors:
        names = list(tensors.keys())
    for name in names:
        tensor = one[name]
        yield name, torch.lerp(tensor.float(), other[name].float(), weight).to(tensor.dtype)


def _check_tensors(one: Weights, other: Weights) -> None:
    if missing := sorted(one.names ^ other.names):
        raise PlanError(f"only one of the models has {missing[0]}: they are of different architectures")
    for name in sorted(one.names):
        if one.shape(name) != other.shape(name):
            raise PlanError(f"{name} is {one.shape(name)} in one model, {other.shape(name)} in the other")


def _check_alike(first: Path, second: Path) -> None:
    """Raises PlanError if the models differ in computation or vocabulary."""
    configs = [_config(directory) for directory in (first, second)]
    different = sorted(key for key in configs[0] | configs[1] if configs[0].get(key) != configs[1].get(key))
    if different:
        values = [config.get(different[0]) for config in configs]
        raise PlanError(f"config.json: {different[0]} is {values[0]} in {first} and {values[1]} in {second}")
    files = [directory / "tokenizer.json" for directory in (first, second)]
    if all(file.is_file() for file in files):
        vocabularies = [json.loads(file.read_text()).get("model", {}).get("vocab") for file in files]
        if vocabularies[0] != vocabularies[1]:
            raise PlanError(f"the tokenizers of {first} and {second} have other vocabularies")


def _config(directory: Path) -> dict[str, object]:
    """Returns the configuration, completed by transformers, without OTHER_KEYS."""
    config = AutoConfig.from_pretrained(directory, local_files_only=True).to_dict()
    return {key: value for key, value in config.items() if key not in OTHER_KEYS and value is not None}


def main() -> None:
    parser = command_parser("extensions.tools.merge", __doc__)
    parser.add_argument("first", type=Path, help="directory of a model")
    parser.add_argument("second", type=Path, help="another one, of the same architecture and tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="new directory for the mean")
    parser.add_argument("--weight", type=float, default=0.5, help="weight of the second model, from 0 to 1")
    options = parser.parse_args()
    try:
        merge(options.first, options.second, options.out, options.weight)
        print(options.out)
    except (OSError, ValueError, PlanError) as error:
        sys.exit(f"merge: {error}")


if __name__ == "__main__":
    main()
