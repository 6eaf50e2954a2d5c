"""The vLLM adapter: `python -m inference_adapters.vllm --model PATH --port 8000`, and vLLM's options.

In the API process, `__main__` starts the server and `engine` moves weights. `engine_client` extends vLLM's
engine client, and `openai_routes` vLLM's OpenAI API. In worker processes, `transport` receives weights;
`plugin` registers it with vLLM.
"""

SCORED_LAST = "pipelinerl_scored_last"  # in extra_args: the token to score after a prompt
SCORED_AT = "pipelinerl_scored_at"  # in extra_args: the temperature of the scores
KNOWN_VERSIONS = "0.32"  # supported vLLM versions: the adapter depends on their weight-transfer lifecycle
