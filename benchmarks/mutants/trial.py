"""Tries one mutant in a copy of the tree."""

import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.mutants.draw import Mutant
from benchmarks.mutants.lines import Lines
from benchmarks.mutants.oracles import kit_on_server, kit_on_trainer, unit_tests
from benchmarks.mutants.server import ROOT

TESTS = {  # test files of each file, by their names without test_
    "inference_adapters/app": "app server",
    "inference_adapters/bodies": "neutral_values openai_surface",
    "inference_adapters/body_limits": "http_bodies http_limits limits_of_work",
    "inference_adapters/call_reader": "tools completions",
    "inference_adapters/choices": "completions tools generation refused_generation streams",
    "inference_adapters/completions": "completions tools generation refused_generation streams",
    "inference_adapters/control_routes": "weight_updates refused_updates ends_of_updates server",
    "inference_adapters/detokenizer": "completions stop_strings",
    "inference_adapters/embedded": "lost_weights weight_updates refused_updates ends_of_updates",
    "inference_adapters/error_answers": "http_bodies http_limits server",
    "inference_adapters/finite_weights": "not_finite",
    "inference_adapters/generation_routes": "generation refused_generation streams limits_of_work scoring",
    "inference_adapters/http_protocol": "http_limits hostile_requests",
    "inference_adapters/logprob_forms": "openai_surface completions",
    "inference_adapters/manifest_check": "weight_updates refused_updates ends_of_updates rules",
    "inference_adapters/message_parts": "openai_surface neutral_values",
    "inference_adapters/model_routes": "openai_surface server",
    "inference_adapters/neutral_values": "neutral_values openai_surface",
    "inference_adapters/prompts": "openai_surface request_checks",
    "inference_adapters/request_checks": "request_checks rules generation refused_generation streams",
    "inference_adapters/score_route": "scoring",
    "inference_adapters/scripted": "weight_updates ends_of_updates generation streams scoring",
    "inference_adapters/stop_strings": "stop_strings streaming",
    "inference_adapters/streaming": "streaming generation refused_generation streams",
    "inference_adapters/text_checks": "limits_of_work request_checks generation refused_generation streams",
    "inference_adapters/threads": "app lost_weights",
    "inference_adapters/tokenizer_mixin": "tools stop_strings completions",
    "inference_adapters/weight_updates": "weight_updates refused_updates ends_of_updates rules lost_weights",
    "inference_adapters/transformers": "transformers scoring not_finite",
    "inference_adapters": "server weight_updates generation",
    "trainer_adapters/activation_checkpointing": "activation_checkpointing memory",
    "trainer_adapters/attention": "varlen shared_prefixes fsdp",
    "trainer_adapters/compiled_layers": "compiled_layers",
    "trainer_adapters/memory": "memory",
    "trainer_adapters/shared_prefixes": "shared_prefixes",
    "trainer_adapters/start_check": "start_check",
    "trainer_adapters": "fsdp value_head",
}
COPIED = ("pyproject.toml", "contracts", "inference_adapters", "trainer_adapters", "pipelinerl", "tests")
COPIED += ("extensions", "examples", "conf", "launch.py")


def tried(mutant: Mutant, models: dict[str, str], lines: dict[str, Lines]) -> dict[str, object]:
    """Returns the record of a mutant: which check kills it, and the measurement."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        (copy / mutant.file).write_text(mutant.code)
        by = "kit"
        seen = (
            kit_on_trainer(copy, mutant.file)
            if mutant.file.startswith("trainer")
            else kit_on_server(copy, mutant.file, mutant.line, models, lines)
        )
        if not seen:
            by = "unit tests"
            seen = unit_tests(copy, tests_of(mutant.file))
    record = asdict(mutant) | {"killed by": by if seen else "", "seen": seen[:500]}
    del record["code"]
    return record | {"seconds": round(time.monotonic() - began)}


def tests_of(file: str) -> list[str]:
    """Returns the test files that concern a file."""
    package = file.split("/")[0]
    place = next(place for place in TESTS if file.startswith(place))
    return [f"tests/{package}/test_{name}.py" for name in TESTS[place].split()]
