"""Prints what vLLM's command line and its loading of media answer, run by vLLM's own Python.

Each argument is a command line. It is printed if it is taken.
"""

import sys

from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY

from inference_adapters.vllm.__main__ import _arguments
from inference_adapters.vllm.media import CONNECTOR

for line in sys.argv[1:]:
    sys.argv = ["vllm", "--model", "m", *line.split()]
    try:
        _arguments()
        print(f"{line} is taken")
    except SystemExit as refusal:
        print(refusal)

connector = MEDIA_CONNECTOR_REGISTRY.load(CONNECTOR)
for fetch in (connector.fetch_image, connector.fetch_audio, connector.fetch_video):
    try:
        fetch("http://127.0.0.1:1/")
    except ValueError as refusal:
        print(refusal)
