"""The location of SGLang, and its commands on a CPU: behind the adapter, and bare."""

import os

from inference_adapters.sglang import API_KEY_VARIABLE
from inference_adapters.sglang.options import environment
from pipelinerl.paths import ROOT

PYTHON = str(ROOT / ".venv-sglang" / "bin" / "python")
KEY = "benchmark"
ENVIRONMENT = os.environ | environment(workers=1) | {"OMP_NUM_THREADS": "1", API_KEY_VARIABLE: KEY}
OPTIONS = ["--dtype", "float32", "--max-total-tokens", "32768"]
ADAPTER = [PYTHON, "-m", "inference_adapters.sglang", *OPTIONS]
BARE = [PYTHON, "-P", "inference_adapters/sglang/launcher.py", *OPTIONS]
BARE += ["--device", "cpu", "--log-level", "warning"]
BARE += ["--sleep-on-idle"]  # otherwise it uses a core while the other server is measured
