"""The recording endpoint: OpenAI's chat completions, by the model under training, token for token."""
