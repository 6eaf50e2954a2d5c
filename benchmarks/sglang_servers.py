"""Where SGLang is, and how it is started on a CPU."""

from pipelinerl.jobs import ROOT

PYTHON = str(ROOT / ".venv-sglang" / "bin" / "python")
OPTIONS = ["--dtype", "float32", "--max-total-tokens", "32768"]
