"""Checks whether the model suits this run, as far as it is known: each refusal is one clear line."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten

from contracts.model_shape import ModelShape
from pipelinerl.batching.of_run import longest_rollout
from pipelinerl.clients.chat_template import ChatTemplate
from pipelinerl.components import build_domain, instantiate
from pipelinerl.config import RunConfig
from pipelinerl.domains.demonstrations import Demonstrations
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.demonstrated import Most, check_answers
from pipelinerl.launcher.checking.gpu_memory import check_fits
from pipelinerl.launcher.checking.model_files import check_files, check_vocabulary
from pipelinerl.launcher.checking.model_source import LONGEST_REASON, Model
from pipelinerl.launcher.checking.prompt_checks import check_prompts
from pipelinerl.launcher.checking.teacher_check import check_teacher
from pipelinerl.launcher.checking.template_checks import check_template


def check_model(config: RunConfig, model: Model) -> None:
    """Checks that the context holds prompt and completion, and that the model fits on the GPUs.

    Checks also that its chat template does what the domain needs, and that prompts are as short as expected.
    """
    if model.state == "here":
        from transformers import AutoTokenizer  # seconds, which a run without a model need not wait

        if not (config.plan and model.hub):  # of the hub's model, a plan needs no more than config.json
            check_files(Path(model.path))
        if why := instantiate(config.trainer).unfit(model.path):
            raise PlanError(f"the trainer cannot train the model in model.path={model.path}: {why}")
        try:
            tokenizer = AutoTokenizer.from_pretrained(model.path, local_files_only=True)
        except Exception as error:  # of whatever library reads this kind of tokenizer
            raise PlanError(
                f"model.path={model.path} has no usable tokenizer: {shorten(str(error), LONGEST_REASON)}"
            ) from error
        check_vocabulary(Path(model.path), tokenizer)
        domain = build_domain(config)
        check_template(config, tokenizer, domain, model.path)
        template = ChatTemplate(model.path, tokenizer)
        check_prompts(config, template, domain)
        check_teacher(config, tokenizer)
        if isinstance(domain, Demonstrations) and model.shape:
            shape = model.shape
            most = Most(shape.vocab_size, shape.context, longest_rollout(config))
            check_answers(domain.rows, template, most)
    if model.shape:
        check_shape(config, model.shape)


def check_shape(config: RunConfig, shape: ModelShape) -> None:
    """Checks what the model's shape alone tells: context and memory."""
    _check_context(config, shape.context)
    if config.world.gpus:
        check_fits(config, shape)


def _check_context(config: RunConfig, context: int) -> None:
    longest = {"sampling": config.sampling.max_tokens, "probe": config.probe.max_tokens}
    for section, tokens in longest.items():
        wanted = config.sampling.max_prompt_tokens + tokens
        if wanted > context:
            raise PlanError(
                f"sampling.max_prompt_tokens + {section}.max_tokens = {wanted} exceeds the model's context "
                f"of {context}; lower one of them"
            )
