"""Inference servers that are unusual but keep the contract: the kit must pass each on every guarantee.

Each is a few lines over the scripted server. `python -m tests.conformance.odd_servers OneSlot 8001` serves
one.
"""

import gc
import importlib
import logging
import os

import torch

from contracts.support.token import TOKEN_VARIABLE
from inference_adapters.serve import arguments, run
from tests.conformance.odd_servers.registry import ODD, TOKEN
from tests.inference_adapters.servers import CHANNELS

__all__ = ["ODD", "TOKEN", "serve"]
MODULES = "engines states declarations answers transport"

for module in MODULES.split():
    importlib.import_module(f"{__name__}.{module}")  # registers its servers


def serve(name: str, port: int) -> None:
    """Serves one until it is killed. It runs in a process of its own, which the server may change."""
    gc.freeze()  # a server collects garbage when it starts, and would look at all that was imported
    torch.set_num_threads(1)
    os.environ[TOKEN_VARIABLE] = TOKEN
    odd = ODD[name]
    argv = ["--host", odd.host, "--port", str(port), *CHANNELS]
    options = arguments(__doc__, argv).parse_args(argv)
    logging.disable()  # only the kit reports failures
    run(odd.make(), options, limits=odd.limits)
