"""The SGLang adapter: `python -m inference_adapters.sglang --model PATH --port 8000`, and SGLang's options.

`__main__` starts the server's process, `engine` moves weights and tokens, and `server_process` owns SGLang's
process, which begins at `launcher`. `cpu_stubs` is for machines without CUDA.
"""

KNOWN_VERSIONS = "0.5.23"  # SGLang versions whose weight-update routes this adapter knows
API_KEY_VARIABLE = "PIPELINERL_SGLANG_KEY"  # SGLang's key; every user can read a command line
PARENT_VARIABLE = "PIPELINERL_SGLANG_PARENT"  # process id of the server
