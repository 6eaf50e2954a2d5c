"""The commands beside `launch.py`, each with the sentence of its module, which is read and not imported."""

import ast
from collections.abc import Iterator
from pathlib import Path

from pipelinerl.paths import ROOT

COMMANDS = (  # what one types while working with runs, in the order in which one comes to need it
    "pipelinerl.streams",
    "extensions.viewer.track",
    "pipelinerl.scale",
    "pipelinerl.export",
    "extensions.viewer.trace",
    "extensions.viewer.parquet",
    "extensions.simulator",
    "pipelinerl.tools.difficulty",
    "pipelinerl.tools.shortest",
    "pipelinerl.tools.merge",
    "pipelinerl.demo_model",
    "pipelinerl.replay",
    "contracts.conformance",
    "contracts.schema",
    "inference_adapters.transformers",
    "inference_adapters.vllm",
    "inference_adapters.sglang",
    "inference_adapters.scripted",
)


def described_commands() -> Iterator[tuple[str, str]]:
    """Yields each command and what it does."""
    for module in COMMANDS:
        docstring = ast.get_docstring(ast.parse(source_of(module).read_text())) or ""
        yield f"python -m {module}", docstring.split("\n")[0]


def source_of(module: str) -> Path:
    """Returns the file that `python -m MODULE` runs."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
