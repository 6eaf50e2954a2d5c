"""Trainers that break one guarantee each: a few lines over a correct one, in files by guarantee.

Every mutant names the guarantee that must catch it, the part of it that says so, and what it says.
"""

import importlib

from tests.conformance.trainer_mutants.mutants import MUTANTS

__all__ = ["MUTANTS"]
MODULES = (
    "forward gradient rare_data shared_prompts steps weights weights_layout buffers low_rank checkpoints "
    "writers uneven memory offload shards periods"
)

for module in MODULES.split():
    importlib.import_module(f"{__name__}.{module}")  # registers its mutants
