"""Inference servers that break one guarantee each: a few lines over the scripted server, a file a guarantee.

Every mutant names the guarantee that has to catch it, and those that its fault cannot but break as well.
`python -m tests.conformance.broken_servers KeepsThePrefixCache 8001` serves one.
"""

import importlib
import logging
import os
from pathlib import Path

import torch

from contracts.support.token import TOKEN_VARIABLE
from inference_adapters.serve import arguments, run
from tests.conformance.broken_servers.mutants import MUTANTS, TOKEN

__all__ = ["MUTANTS", "TOKEN", "serve"]

for module in sorted(Path(__file__).parent.glob("[!_]*.py")):
    importlib.import_module(f"{__name__}.{module.stem}")  # registers its mutants


def serve(name: str, port: int) -> None:
    """Serves a mutant until it is killed; runs in a process of its own, which it may spoil."""
    torch.set_num_threads(1)
    os.environ[TOKEN_VARIABLE] = TOKEN
    options = arguments(__doc__).parse_args(["--port", str(port)])
    logging.disable()  # what fails is the kit's to tell
    run(MUTANTS[name].make(options), options)
