"""The model card of exported weights: base model, training configuration, held-out success.

Called by the launcher at the end of a run, and by `python -m pipelinerl.export`. The card contains no path of
this machine.
"""

import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from safetensors import safe_open

from contracts.records import Evaluated
from contracts.support.files import write_atomically
from contracts.support.messages import one_line, printable
from contracts.support.sizes import describe_count
from pipelinerl.config import ResolvedRun
from pipelinerl.report.evaluation_table import cells, rows_of
from pipelinerl.report.secrets import LEFT_OUT, without_secrets

PUBLIC = re.compile(r"[\w.-]+(/[\w.-]+)?")  # a word, or a repository id: no path, no URL
COMPONENTS = ("objective", "advantage", "normalisation", "domain", "sampler", "trainer")
LISTS = ("filters", "rewards", "regularisers")
PLAIN = ("schedule", "batch_size", "group_size", "max_lag", "on_stale", "epochs", "credit", "seed")
SECTIONS = {
    "sampling": ("temperature", "max_tokens"),
    "optimizer": ("lr", "warmup_steps", "decay_steps", "weight_decay", "max_grad_norm"),
}
TEXT = """\
# {title}

{base}, trained by PipelineRL with reinforcement learning: the weights after {version} optimizer steps.

## Held-out success

{evaluations}

## How it was trained

| key | value |
|---|---|
{keys}
"""


def write_model_card(
    directory: Path, config: ResolvedRun, version: int, results: Sequence[Evaluated]
) -> None:
    """Writes `README.md` into the directory of an exported model of a weight version.

    results: the evaluations of the run; those of newer versions are ignored. Raises ModelCardError.
    """
    try:
        results = [result for result in results if result.version <= version]
        card = model_card(config, version, results, parameters_in(directory))
        write_atomically(directory / "README.md", str(card))
    except Exception as error:  # the model is complete without its card
        raise ModelCardError(f"{directory} has no model card: {one_line(error)}") from error


class ModelCardError(Exception):
    """A model card could not be written. The message gives the reason in one line."""


def parameters_in(directory: Path) -> int:
    """Returns the number of parameters in the model's files, in which tied ones are stored once."""
    count = 0
    for file in directory.glob("*.safetensors"):
        with safe_open(file, framework="numpy") as weights:
            count += sum(prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return count


def model_card(
    config: ResolvedRun, version: int, results: Sequence[Evaluated], parameters: int = 0
) -> ModelCard:
    """Returns the card of a weight version. parameters: their number; 0 = do not mention it."""
    name = printable(config.model.hub or Path(str(config.model.path)).name)
    data = ModelCardData(
        base_model=config.model.hub,  # a link on the Hub, where a directory's name may be another model
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["reinforcement-learning", "pipelinerl"],
    )
    keys = "\n".join(f"| {key} | {_cell(value)} |" for key, value in training_keys(config).items())
    text = TEXT.format(
        title=f"{name}, version {version}",
        base=f"`{name}` ({describe_count(parameters)} parameters)" if parameters else f"`{name}`",
        version=version,
        evaluations=_evaluations(results),
        keys=keys,
    )
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}")


def training_keys(config: ResolvedRun) -> dict[str, str]:
    """Returns the configuration keys of the card, with their values."""
    saved = without_secrets(config.model_dump(by_alias=True, mode="json"))
    keys = {name: _component(saved[name]) for name in COMPONENTS}
    keys |= {name: ", ".join(map(_component, saved[name])) or "none" for name in LISTS}
    keys |= {name: _public(saved[name]) for name in PLAIN}
    for section, names in SECTIONS.items():
        keys |= {f"{section}.{name}": _public(saved[section][name]) for name in names}
    return keys


def _component(component: dict[str, Any]) -> str:
    options = ", ".join(f"{name}={_public(value)}" for name, value in component.items() if name != "_target_")
    return f"{component['_target_']}({options})"


def _public(value: Any) -> str:
    """Returns a value as text, without texts that may be paths or URLs."""
    match value:
        case str():
            return value if PUBLIC.fullmatch(value) else LEFT_OUT
        case list():
            return f"[{', '.join(map(_public, value))}]"
        case dict():
            return f"{{{', '.join(f'{key}: {_public(item)}' for key, item in value.items())}}}"
        case None:
            return "none"
    return str(value)


def _evaluations(results: Sequence[Evaluated]) -> str:
    if not results:
        return "None is recorded."
    rows = [[name, *cells(results, name)] for name in rows_of(results[-1])]
    head = "| held out | problems | attempts | first | best | last |\n|---|---|---|---|---|---|\n"
    return head + "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows)


def _cell(text: str) -> str:
    """Returns text as inline code, escaped for a table cell."""
    safe = printable(text).replace("`", "'").replace("|", "\\|")
    return f"`{safe}`" if safe else ""
