"""Checks the files of the model and of a teacher, and whether they suit the run. Called by `prepare.py`.

A teacher is a different model that the reference server serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from contracts.model_shape import ModelShape
from contracts.support.messages import one_line
from contracts.whole_model import fault_in_files, fault_of_loading, fault_of_ties, is_quantised
from pipelinerl.batching.of_run import longest_rollout
from pipelinerl.clients.conversations import build_conversations
from pipelinerl.components import build_domain, instantiate
from pipelinerl.config import ReferenceConfig, RunConfig
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.domains.demonstrations import Demonstrations
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.conversations import check_conversations, check_names
from pipelinerl.launcher.checking.gpu_memory import check_fits
from pipelinerl.launcher.checking.model_source import LONGEST_REASON, Model
from pipelinerl.launcher.checking.problems import Limits, check_answers, check_prompts
from pipelinerl.launcher.checking.server_limits import check_context
from pipelinerl.launcher.checking.side_by_side import check_side_by_side
from pipelinerl.launcher.checking.template import check_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNKNOWN_CLASS = "Unrecognized configuration class"  # the beginning of transformers' message
TOKENIZER = ("tokenizer.json", "*.model", "*.tiktoken", "vocab.*")
TEACHER = "reference.arguments.model"


def check_model(config: RunConfig, model: Model) -> None:
    """Checks files, tokenizer, chat template, prompts, teacher, context and memory. Raises PlanError."""
    if model.state == "here":
        from transformers import AutoTokenizer  # takes seconds, and a run without a model does not need it

        if not (config.plan and model.hub):  # of the hub's model, a plan needs no more than config.json
            check_files(Path(model.path))
        if why := instantiate(config.trainer).unfit(model.path):
            raise PlanError(f"the trainer cannot train the model in model.path={model.path}: {why}")
        try:
            tokenizer = AutoTokenizer.from_pretrained(model.path, local_files_only=True)
        except Exception as error:  # any error of the tokenizer's library
            raise PlanError(
                f"model.path={model.path} has no usable tokenizer: {shorten(str(error), LONGEST_REASON)}"
            ) from error
        check_vocabulary(Path(model.path), tokenizer)
        domain = build_domain(config)
        template = TemplateConversations(model.path, tokenizer)
        if tokenizer.chat_template:
            check_names(template, config.model.template or {})
        check_template(config, template, domain)
        try:
            conversations = build_conversations(config.model, "tools" in domain.needs, model.path, tokenizer)
        except PlanError:
            raise
        except Exception as error:  # any error of the component that `model.renderers` names
            raise PlanError(f"model.renderer={config.model.renderer}: {one_line(error)}") from error
        check_conversations(config, conversations, template, domain)
        check_prompts(config, conversations, template, domain)
        check_teacher(config.reference, tokenizer, model.path)
        if isinstance(domain, Demonstrations) and model.shape:
            shape = model.shape
            limits = Limits(shape.vocab_size, shape.context, longest_rollout(config))
            check_answers(domain.rows, template, limits, config.model.template)
    if model.shape:
        check_shape(config, model.shape)
    check_context(config, model.shape.context if model.shape else None)


def check_shape(config: RunConfig, shape: ModelShape) -> None:
    """Checks context and memory, which need only the shape. Raises PlanError."""
    longest = {"sampling": config.sampling.max_tokens, "probe": config.probe.max_tokens}
    for section, tokens in longest.items():
        wanted = config.sampling.max_prompt_tokens + tokens
        if wanted > shape.context:
            raise PlanError(
                f"sampling.max_prompt_tokens + {section}.max_tokens = {wanted} exceeds the model's context "
                f"of {shape.context}; lower one of them"
            )
    if config.shares_gpus:
        check_side_by_side(config, shape)
    if config.world.gpus:
        check_fits(config, shape)


def check_files(directory: Path, key: str = "model.path") -> None:
    """Raises PlanError for missing files, which transformers would replace by made-up tensors and tokens."""
    if why := fault_in_files(directory) or _fault_of_names(directory):
        raise PlanError(f"{key}={directory} is no whole model: {why}")
    if not any(any(directory.glob(pattern)) for pattern in TOKENIZER):
        raise PlanError(f"{key}={directory} has no tokenizer (none of {', '.join(TOKENIZER)})")


def check_vocabulary(directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises PlanError for a tokenizer with ids that have no embedding.

    Added tokens except for the end token are not checked: many models have unused ones.
    """
    from transformers import AutoConfig

    size = AutoConfig.from_pretrained(directory, local_files_only=True).get_text_config().vocab_size
    unused = tokenizer.get_added_vocab().keys() - {tokenizer.eos_token}
    beyond = [(i, token) for token, i in tokenizer.get_vocab().items() if i >= size and token not in unused]
    if beyond:
        number, token = min(beyond)
        raise PlanError(
            f"model.path={directory}: the tokenizer's {token!r} is token {number}, and vocab_size in "
            f"config.json is {size}: its tokenizer is that of another model"
        )


def _fault_of_names(directory: Path) -> str | None:
    """Returns missing and unknown tensors, or None. Loads to the "meta" device, which needs no memory."""
    import torch

    from contracts.causal_model import causal_config, load_causal

    options = {"dtype": torch.float32, "ignore_mismatched_sizes": True, "local_files_only": True}
    try:
        config = causal_config(str(directory), local_files_only=True)
        if is_quantised(config.to_dict()):
            return None  # the trainer says whether it can train it
        with _quiet():
            model, report = load_causal(str(directory), device_map="meta", **options)
    except Exception as error:  # any error of the model's class
        if UNKNOWN_CLASS in str(error):
            kind = f"{type(config).__name__} ({config.model_type})"
            return f"{kind} is not the class of a causal language model"
        return shorten(f"{type(error).__name__}: {one_line(error)}", LONGEST_REASON)
    return fault_of_loading(model, report) or fault_of_ties(model, directory)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences transformers, whose report is part of the error message."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def with_absolute_teacher(reference: ReferenceConfig | None) -> ReferenceConfig | None:
    """Returns the section with the absolute directory of the teacher, without links."""
    if reference is None or "model" not in reference.arguments:
        return reference
    name = Path(str(reference.arguments["model"]))
    if not name.is_dir():
        return reference
    arguments = reference.arguments | {"model": str(name.resolve())}
    return reference.model_copy(update={"arguments": arguments})


def check_teacher(reference: ReferenceConfig | None, tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    """Raises PlanError for a missing teacher, or one with another vocabulary than the model in `path`."""
    if reference is None or "model" not in reference.arguments:
        return
    from transformers import AutoTokenizer

    name = str(reference.arguments["model"])
    if not (Path(name) / "config.json").is_file():
        raise PlanError(f"{TEACHER}={name} is not a Hugging Face model directory: it has no config.json")
    check_files(Path(name), TEACHER)
    try:
        vocabulary = AutoTokenizer.from_pretrained(name, local_files_only=True).get_vocab()
    except Exception as error:  # any error of the tokenizer's library
        why = shorten(str(error), LONGEST_REASON)
        raise PlanError(f"{TEACHER}={name} has no usable tokenizer: {why}") from error
    if vocabulary != tokenizer.get_vocab():
        raise PlanError(
            f"{TEACHER}={name} has another vocabulary than model.path={path}: a teacher scores "
            "the ids that were sampled, so both need the same tokenizer"
        )
