"""SGLang servers to measure: behind the adapter, and bare."""

from pipelinerl.jobs import ROOT

PYTHON = str(ROOT / ".venv-sglang" / "bin" / "python")
OPTIONS = ["--dtype", "float32", "--max-total-tokens", "32768"]
