"""An export has the weights in any case. What beside them cannot be copied is named in one line."""

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from tests.trainer_adapters.architectures import tiny_config, tiny_model
from tests.trainer_adapters.models import make_model
from trainer_adapters.buffers import persistent_buffers
from trainer_adapters.checkpoint_io import copy_tokenizer, save_model


def exported(model: PreTrainedModel, source: Path, out: Path) -> None:
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    out.mkdir()
    save_model(model, weights | persistent_buffers(model), str(source), out)
    copy_tokenizer(str(source), out)


def with_object(model: PreTrainedModel, source: Path) -> None:
    model.config.mine = object()


def with_wrong_layers(model: PreTrainedModel, source: Path) -> None:
    model.config.layer_types = ["full_attention"]


def without_end(model: PreTrainedModel, source: Path) -> None:
    model.generation_config.mine = object()


def contradictory(model: PreTrainedModel, source: Path) -> None:
    model.generation_config.temperature = 0.5
    model.generation_config.do_sample = False


def with_lost_link(model: PreTrainedModel, source: Path) -> None:
    (source / "tokenizer.old").symlink_to("nowhere")


def with_templates(model: PreTrainedModel, source: Path) -> None:
    (source / "chat_template.d").mkdir()
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")


def with_lost_template(model: PreTrainedModel, source: Path) -> None:
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tools.jinja").symlink_to("nowhere")


def moved(model: PreTrainedModel, source: Path) -> None:
    source.rename(source.with_name("elsewhere"))


ODD: dict[Callable[[PreTrainedModel, Path], None], str | None] = {
    with_object: "the export has config.json of",
    with_wrong_layers: "the export has config.json of",
    without_end: "the export has generation_config.json of",
    contradictory: None,
    with_lost_link: "the export lacks .*tokenizer.old",
    with_templates: None,
    with_lost_template: "the export lacks .*additional_chat_templates",
    moved: "the export has no tokenizer, because",
}


@pytest.mark.parametrize("spoil", ODD, ids=lambda spoil: spoil.__name__)
def test_the_weights_are_written_whatever_lies_beside(tmp_path, caplog, spoil):
    source = Path(make_model(tmp_path / "source", "qwen2"))
    model = AutoModelForCausalLM.from_pretrained(source)
    spoil(model, source)
    with caplog.at_level(logging.WARNING, "trainer_adapters"):
        exported(model, source, tmp_path / "out")
    said = [record.getMessage() for record in caplog.records if record.name.startswith("trainer_adapters")]
    assert len(said) == (ODD[spoil] is not None) and not any("\n" in line for line in said)
    if said:
        assert re.search(ODD[spoil], said[0])
    found, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values())
    for name, tensor in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    if spoil is not moved:
        AutoTokenizer.from_pretrained(tmp_path / "out")
    if spoil is with_templates:
        assert (tmp_path / "out" / "additional_chat_templates" / "tools.jinja").is_file()


@pytest.mark.parametrize("kind", ["mixtral", "gemma4_unified"])
def test_a_config_that_cannot_be_saved_costs_no_converted_weight(tmp_path, kind):
    model = tiny_model(tiny_config(kind))
    model.save_pretrained(tmp_path / "source")
    model.config.get_text_config().mine = object()
    exported(model, tmp_path / "source", tmp_path / "out")
    found, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values())
    assert all(torch.equal(found.state_dict()[n], tensor) for n, tensor in model.state_dict().items())
