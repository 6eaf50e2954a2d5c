"""The vLLM adapter: `python -m inference_adapters.vllm --model PATH --port 8000`, and any option of vLLM's.

API process: `__main__` starts it, `engine` moves weights, `language_model` is vLLM's own engine client,
`openai_routes` its OpenAI API with the contract's fields. Worker processes: `transport`, of which
`plugin` tells vLLM.
"""

KNOWN_VERSIONS = "0.32"  # vLLM's weight-transfer lifecycle changes from release to release
