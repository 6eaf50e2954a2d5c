"""The `transformers` adapter: `python -m inference_adapters.transformers --model PATH --port 8000`."""
