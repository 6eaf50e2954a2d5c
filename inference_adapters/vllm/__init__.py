"""The vLLM adapter: `python -m inference_adapters.vllm --model PATH --port 8000`, and any option of vLLM's.

In the API process, `__main__` starts the server and `engine` moves weights. `engine_client` is vLLM's own
engine client, and `openai_routes` its OpenAI API with the contract's fields. In worker processes, `transport`
receives weights; `plugin` registers it with vLLM.
"""

KNOWN_VERSIONS = "0.32"  # vLLM versions whose weight-transfer lifecycle this adapter knows
