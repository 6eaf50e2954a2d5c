"""An export has the weights in any case. What beside them cannot be copied is named in one line."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from tests.trainer_adapters.architectures import tiny_config, tiny_model
from tests.trainer_adapters.models import make_model
from trainer_adapters.buffers import persistent_buffers
from trainer_adapters.checkpoint_io import copy_tokenizer, save_model

TEMPLATES = "additional_chat_templates"
ODD = {  # what is done to the model or its directory, and what is said
    "a field": (lambda model, _: setattr(model.config, "mine", object()), "has config.json of"),
    "layers": (
        lambda model, _: setattr(model.config, "layer_types", ["full_attention"]),
        "has config.json of",
    ),
    "an end": (
        lambda model, _: setattr(model.generation_config, "mine", object()),
        "generation_config.json of",
    ),
    "cold": (lambda model, _: model.generation_config.update(temperature=0.5, do_sample=False), None),
    "a lost link": (
        lambda _, source: (source / "tokenizer.old").symlink_to("nowhere"),
        "lacks .*tokenizer.old",
    ),
    "templates": (lambda _, source: (source / TEMPLATES).mkdir(), None),
    "a directory": (lambda _, source: (source / "chat_template.d").mkdir(), None),
    "a lost template": (
        lambda _, source: (
            (source / TEMPLATES).mkdir() or (source / TEMPLATES / "a.jinja").symlink_to("nowhere")
        ),
        f"lacks .*{TEMPLATES}",
    ),
    "moved": (lambda _, source: source.rename(source.with_name("elsewhere")), "has no tokenizer, because"),
}


def assert_exported(model: PreTrainedModel, source: Path, out: Path) -> None:
    """Exports, and compares what is loaded again."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    out.mkdir()
    save_model(model, weights | persistent_buffers(model), str(source), out)
    copy_tokenizer(str(source), out)
    found, report = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(report.values())
    assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("case", ODD)
def test_the_weights_are_written_whatever_lies_beside(tmp_path, caplog, case):
    spoil, says = ODD[case]
    source = Path(make_model(tmp_path / "source", "qwen2"))
    model = AutoModelForCausalLM.from_pretrained(source)
    spoil(model, source)
    assert_exported(model, source, tmp_path / "out")
    said = [record.getMessage() for record in caplog.records if record.name.startswith("trainer_adapters")]
    assert len(said) == (says is not None) and all(
        re.search(says, line) and "\n" not in line for line in said
    )
    assert case == "moved" or AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (tmp_path / "out" / TEMPLATES).is_dir() == ("template" in case and case != "a directory")


@pytest.mark.parametrize("kind", ["mixtral", "gemma4_unified"])
def test_a_config_that_cannot_be_saved_costs_no_converted_weight(tmp_path, kind):
    model = tiny_model(tiny_config(kind))
    model.save_pretrained(tmp_path / "source")
    model.config.get_text_config().mine = object()
    assert_exported(model, tmp_path / "source", tmp_path / "out")
