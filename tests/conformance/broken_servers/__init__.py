"""Inference servers that break one guarantee each: a few lines over the scripted server.

Every mutant names the guarantee that must catch it, the part of it that says so, and what it says.
Files are named after guarantees or kinds of fault. `python -m tests.conformance.broken_servers
KeepsThePrefixCache 8001` serves one.
"""

import gc
import importlib
import logging
import os
from pathlib import Path

import torch

from contracts.support.token import TOKEN_VARIABLE
from inference_adapters.serve import arguments, run
from tests.conformance.broken_servers.mutants import MUTANTS, TOKEN
from tests.inference_adapters.servers import CHANNELS

__all__ = ["MUTANTS", "TOKEN", "serve"]

for module in sorted(Path(__file__).parent.glob("[!_]*.py")):
    importlib.import_module(f"{__name__}.{module.stem}")  # registers its mutants


def serve(name: str, port: int) -> None:
    """Serves a mutant until it is killed. It runs in a process of its own, which the mutant may change."""
    gc.freeze()  # a server collects garbage when it starts, and would look at all that was imported
    torch.set_num_threads(1)
    os.environ[TOKEN_VARIABLE] = TOKEN
    argv = ["--port", str(port), *CHANNELS]
    options = arguments(__doc__, argv).parse_args(argv)
    logging.disable()  # only the kit reports failures
    run(MUTANTS[name].make(options), options)
