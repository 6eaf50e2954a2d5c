"""The rule of layers: what each package may import, checked by import-linter and by importing."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_import_rules():
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "10 kept, 0 broken" in result.stdout


MOST_LINES = {  # of Python, so that the trunk grows only on purpose
    ("contracts",): 4_810,
    ("pipelinerl",): 29_060,
    ("contracts", "inference_adapters", "pipelinerl", "trainer_adapters"): 46_420,
}


@pytest.mark.parametrize("packages", MOST_LINES, ids="+".join)
def test_the_trunk_is_no_larger_than_it_is_meant_to_be(packages):
    kit = ROOT / "contracts" / "conformance"
    files = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    lines = sum(file.read_text().count("\n") for file in files if not file.is_relative_to(kit))
    assert lines <= MOST_LINES[packages]


def test_no_scorer_of_reasoning_gym_is_called_outside_of_judging():
    files = [path for folder in ("pipelinerl", "extensions") for path in (ROOT / folder).rglob("*.py")]
    calling = [path for path in files if "score_answer" in path.read_text()]
    assert calling == [ROOT / "extensions" / "reasoning_gym" / "verifier.py"]


def test_inference_contract_and_records_import_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None; "
        "import contracts.inference, contracts.records, contracts.token_fields; "
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_class_of_weight_channels_imports_what_stores_need_once_a_channel_is_made():
    code = (
        "import sys; import extensions.stored_weights.channels; "
        "assert not {'aiohttp', 'cryptography', 'safetensors', 'zstandard'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_what_no_test_runs_can_be_imported():
    code = (
        "import benchmarks, importlib, pkgutil\n"
        "for found in pkgutil.iter_modules(benchmarks.__path__, 'benchmarks.'):\n"
        "    importlib.import_module(found.name)\n"
        "    print(found.name)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "benchmarks.servers" in done.stdout
