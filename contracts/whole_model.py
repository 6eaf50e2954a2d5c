"""Checks that the files of a directory are the complete model that its `config.json` describes.

transformers initialises missing tensors randomly and ignores unknown ones, with only a warning in the log.
The launcher, the trainers and the transformers engine refuse such a model. Each check returns a message, or
None. Tensor names are matched by transformers' own report, not here.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from contracts.support.messages import one_line

FLOATS = ("F64", "F32", "F16", "BF16")  # dtypes of weights, by their safetensors names
CODES = ("F8_", "F6_", "F4")  # prefixes of quantised dtypes, whose values need a scale
TIED = "{} and {} differ in its files, and config.json ties them (tie_word_embeddings)"
POINTER = b"version https://git-lfs"
POINTER_BYTES = 1024  # upper bound of a pointer's size
READ = ("*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt", "model*.safetensors")  # files that are loaded
OPTIONAL = ("generation_config.json", "special_tokens_map.json", "added_tokens.json")
SINGLE = ("model.safetensors", "pytorch_model.bin")  # transformers loads the first that exists,
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")  # each before its index


class IncompleteModelError(ValueError):
    """Raised if a model's files are not the complete model. The message is one line."""


def fault_of_kind(directory: Path) -> str | None:
    """Returns a message if the directory has a PEFT adapter, a GGUF file or a Git LFS pointer, else None."""
    if adapter := _first(directory, "adapter_config.json"):
        return f"{adapter.name} is that of a PEFT adapter: merge it into its model, and name that"
    there = [name for name in (*SINGLE, *INDICES) if (directory / name).exists()]
    if not there and (gguf := _first(directory, "*.gguf")):
        return f"{gguf.name} is a GGUF file: name the model that it was made of"
    patterns = READ if _first(directory, "model*.safetensors") else (*READ, "*.safetensors", "*.bin")
    pointers = filter(_is_pointer, sorted(file for each in patterns for file in directory.glob(each)))
    if pointer := next(pointers, None):
        return f"{pointer.name} is a pointer of Git LFS and not the file itself: run git lfs pull there"
    return None


def fault_in_files(directory: Path) -> str | None:
    """Returns a message that names a missing, unreadable or unsupported file or tensor, else None.

    Reads only the headers of weight files.
    """
    if why := fault_of_kind(directory) or _fault_of_optional(directory):
        return why
    try:
        files = _weight_files(directory)
        quantised = is_quantised(json.loads((directory / "config.json").read_bytes()))
    except IncompleteModelError as error:
        return str(error)
    except (ValueError, OSError) as error:
        return f"config.json cannot be read: {one_line(error)}"
    for file in files:
        if not file.is_file():
            return f"{file.name}, which the index names, is not there: copy the model again"
        try:
            for name, dtype in _dtypes(file):
                if not quantised and _is_code(name, dtype):
                    return (
                        f"{name} in {file.name} is {dtype}, and config.json has no quantization_config that "
                        "tells its scale; choose the model in bfloat16 or float32"
                    )
        except (SafetensorError, OSError) as error:
            return f"{file.name} cannot be read: {one_line(error)}; copy the model again"
    return None


def _fault_of_optional(directory: Path) -> str | None:
    """Checks the optional files. If one is truncated, transformers ignores it silently."""
    for name in OPTIONAL:
        try:
            json.loads((directory / name).read_bytes())
        except FileNotFoundError:
            continue
        except (ValueError, OSError) as error:
            return f"{name} cannot be read: {one_line(error)}; copy the model again"
    return None


def fault_of_loading(model: Any, report: Mapping[str, Any]) -> str | None:
    """Returns a message that names a tensor by which a loaded model and its files differ, else None.

    `report` is the result of transformers' `output_loading_info`.
    """
    kind = type(model).__name__
    unknown = sorted(report["unexpected_keys"])
    if missing := sorted(report["missing_keys"]):
        share = f"{len(missing)} of {len(model.state_dict())} tensors"
        has = f"; the files have {unknown[0]}, which the model has not" if unknown else ""
        return f"{missing[0]} is not in its files ({share} are not){has}"
    for name, found, expected in sorted(report["mismatched_keys"], key=str):
        return f"{name} has the shape {list(found)} in its files, and {list(expected)} by config.json"
    if unknown:
        return f"{unknown[0]} is in its files, and is no tensor of {kind} by config.json"
    declared = model.get_expanded_tied_weights_keys(all_submodels=True)
    for name, source in declared.items():
        if name not in model.all_tied_weights_keys:  # transformers does not tie weights whose values differ
            return TIED.format(name, source)
    return None


def fault_of_ties(model: Any, directory: Path) -> str | None:
    """Returns a message if tied tensors differ in the files, else None. `model` may be on the meta device."""
    there = {
        name: file
        for file in _weight_files(directory)
        for name, _ in _dtypes(file)
        if name in model.all_tied_weights_keys or name in model.all_tied_weights_keys.values()
    }
    for name, source in model.all_tied_weights_keys.items():
        if name in there and source in there:
            one, other = (_read(there[each], each) for each in (name, source))
            if not one.equal(other):
                return TIED.format(name, source)
    return None


def is_quantised(config: Mapping[str, Any]) -> bool:
    """Returns True if a `config.json` describes quantised weights."""
    parts = (config, config.get("text_config") or {})
    return any(part.get("quantization_config") or part.get("compression_config") for part in parts)


def _weight_files(directory: Path) -> list[Path]:
    """Returns the weight files that transformers loads. Raises IncompleteModelError if that is ambiguous."""
    for single, index in zip(SINGLE, INDICES, strict=True):
        named = _indexed(directory / index) if (directory / index).exists() else set()
        if (directory / single).exists():
            if named - {single}:
                raise IncompleteModelError(
                    f"{single} and {index} are both there, and engines differ in which they load: remove one"
                )
            return [directory / single]
        if named:
            return sorted(directory / name for name in named)
    raise IncompleteModelError(f"it has no weights: none of {', '.join([*SINGLE, *INDICES])}")


def _indexed(index: Path) -> set[str]:
    try:
        names = {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise IncompleteModelError(f"{index.name} is not an index of weights: {one_line(error)}") from error
    if not names:
        raise IncompleteModelError(f"{index.name} names no file of weights: copy the model again")
    return names


def _dtypes(file: Path) -> Iterator[tuple[str, str]]:
    """Yields names and dtypes of a safetensors file, and nothing for another file."""
    if file.suffix == ".safetensors":
        with safe_open(file, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                yield name, tensors.get_slice(name).get_dtype()


def _read(file: Path, name: str) -> Any:
    with safe_open(file, framework="pt") as tensors:
        return tensors.get_tensor(name)


def _is_code(name: str, dtype: str) -> bool:
    return dtype.startswith(CODES) or (name.endswith("weight") and dtype not in FLOATS)


def _is_pointer(file: Path) -> bool:
    if not file.is_file() or file.stat().st_size > POINTER_BYTES:
        return False
    try:
        return file.read_bytes().startswith(POINTER)
    except OSError:  # reported when the file is loaded
        return False


def _first(directory: Path, pattern: str) -> Path | None:
    return next(iter(sorted(directory.glob(pattern))), None)
