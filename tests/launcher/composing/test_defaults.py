"""A default is written once, and every key says what it is."""

import inspect
from pathlib import Path

import pytest
import yaml
from hydra.utils import get_class

from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.composing.choices import describe_options
from pipelinerl.launcher.composing.compose import compose_config, defaults_of
from pipelinerl.paths import ROOT, conf_directories


def leaves(tree: dict, prefix: str = "") -> set[str]:
    """The dotted names of all values; an empty mapping is a value."""
    found = set()
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            found |= leaves(value, f"{prefix}{name}.")
        else:
            found.add(prefix + name)
    return found


def components() -> list[Path]:
    files = sorted(file for conf in conf_directories() for file in conf.glob("*/*.yaml"))
    return [file for file in files if "_target_" in yaml.safe_load(file.read_text())]


@pytest.mark.parametrize("file", components(), ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_components_file_and_its_constructor_do_not_contradict_each_other(file):
    given = yaml.safe_load(file.read_text())
    named = get_class(given["_target_"])
    parameters = inspect.signature(getattr(named, "Options", named)).parameters
    for name, parameter in parameters.items():
        both = name in given and parameter.default not in (inspect.Parameter.empty, None)
        if both and given[name] != f"${{{name}}}":
            assert parameter.default == given[name], name


def test_a_file_that_a_shipped_one_hides_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "conf" / "streams" / "files.yaml"
    file.parent.mkdir(parents=True)
    file.write_bytes((ROOT / "conf" / "streams" / "files.yaml").read_bytes())
    compose_config([])
    file.write_text("_target_: mine.Streams")
    with pytest.raises(PlanError, match="files.yaml: the project has a choice of that name"):
        compose_config([])


def test_help_lists_every_key_with_a_sentence_and_every_choice():
    lines = [
        line.strip().lstrip("+") for line in describe_options(compose_config([])) if line.startswith("  ")
    ]
    assert any(line.startswith("inference=transformers") and "vllm" in line for line in lines)
    keys = {line.split("=")[0]: line for line in lines}
    leaves_listed = keys.keys() | {"estimate", "model.made_by", "model.renderers", "rollout.repetition"}
    assert leaves(defaults_of(RunConfig)) - {"reference"} <= leaves_listed and "model.made_by.name" in keys
    without = [key for key, line in keys.items() if not line.endswith(".")]
    assert CHOICES.issuperset(without), without


CHOICES = {path.name for conf in conf_directories() for path in conf.iterdir() if path.is_dir()}
