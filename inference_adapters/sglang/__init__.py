"""The SGLang adapter: `python -m inference_adapters.sglang --model PATH --port 8000`, and SGLang's options.

`__main__` starts the server. `engine` moves weights and tokens. `server_process` manages SGLang's process,
whose program is `launcher`. `cpu_stubs` is for machines without CUDA.
"""

KNOWN_VERSIONS = "0.5.23"  # supported SGLang version: the adapter depends on its weight-update routes
API_KEY_VARIABLE = "PIPELINERL_SGLANG_KEY"  # SGLang's key: not an option, because users can read those
PARENT_VARIABLE = "PIPELINERL_SGLANG_PARENT"  # process id of the server
