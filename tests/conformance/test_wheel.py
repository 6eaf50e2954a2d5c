"""The built wheel in an environment that has nothing else, where the kit proves another project's adapter."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("contracts", "extensions", "inference_adapters", "pipelinerl", "trainer_adapters")

pytestmark = pytest.mark.engines  # installing torch takes a minute


def run(*command: object, cwd: Path) -> str:
    # Nothing is compiled when it is installed, so the first process writes what the next ones read.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    done = subprocess.run(map(str, command), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, because building leaves files beside the sources."""
    source = tmp_path_factory.mktemp("source")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", source / "dist", ".", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


def test_the_wheel_holds_the_packages_their_types_and_the_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    metadata = wheel.name.rsplit("-", 3)[0] + ".dist-info"
    assert {name.split("/")[0] for name in names} == {*PACKAGES, metadata}
    files = {"contracts/py.typed", "contracts/schema/openapi.json", f"{metadata}/licenses/LICENSE"}
    assert files <= {*names}
    choices = {str(path.relative_to(ROOT)) for path in (ROOT / "extensions").glob("*/conf/*/*.yaml")}
    assert "extensions/cluster/conf/executor/ray.yaml" in choices
    assert choices <= {*names}


def test_the_kit_proves_an_adapter_of_another_project(wheel, tmp_path):
    run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile")
    run(*install, f"{wheel}[conformance]", cwd=tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(ROOT / "examples" / "plain_trainer.py", project / "my_trainer.py")
    kit = (python, "-m", "contracts.conformance")
    told = run(*kit, "trainer", "--adapter", "my_trainer.PlainTrainer", "--only", "T3", "--json", cwd=project)
    (row,) = json.loads(told)["guarantees"]
    assert (row["guarantee"], row["verdict"]) == ("T3", "pass")
    found = run(python, "-c", "import contracts; print(contracts.__file__)", cwd=project)
    assert Path(found.strip()).is_relative_to(tmp_path / "env")
