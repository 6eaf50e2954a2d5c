"""Inference servers that are odd, and keep the contract: the kit has to pass each on every guarantee.

Each is a few lines over the scripted server. `python -m tests.conformance.odd_servers OneSlot 8001` serves
one.
"""

import importlib
import logging
import os

import torch

from contracts.support.token import TOKEN_VARIABLE
from inference_adapters.serve import arguments, run
from tests.conformance.odd_servers.registry import ODD, TOKEN

__all__ = ["ODD", "TOKEN", "serve"]
MODULES = "engines states declarations answers transport"

for module in MODULES.split():
    importlib.import_module(f"{__name__}.{module}")  # registers its servers


def serve(name: str, port: int) -> None:
    """Serves one until it is killed; runs in a process of its own, which it may change."""
    torch.set_num_threads(1)
    os.environ[TOKEN_VARIABLE] = TOKEN
    odd = ODD[name]
    options = arguments(__doc__).parse_args(["--host", odd.host, "--port", str(port)])
    logging.disable()  # what fails is the kit's to tell
    run(odd.make(), options, limits=odd.limits)
