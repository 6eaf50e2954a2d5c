"""The location of vLLM, and its commands on a CPU: behind the adapter, and bare."""

import os

from pipelinerl.paths import ROOT

PYTHON = str(ROOT / ".venv-vllm" / "bin" / "python")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
OPTIONS = ["--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(2**28)]
ADAPTER = [PYTHON, "-m", "inference_adapters.vllm", *OPTIONS]
BARE = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", *OPTIONS]
BARE += ["--logprobs-mode", "processed_logprobs", "--disable-uvicorn-access-log"]  # as in the adapter
