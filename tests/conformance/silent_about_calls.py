"""The transformers adapter, but for one thing: it does not say what is called. For a test of the kit."""

from inference_adapters import generation_routes
from inference_adapters.transformers.__main__ import main

generation_routes.calls_tools = lambda request: False

if __name__ == "__main__":
    main()
