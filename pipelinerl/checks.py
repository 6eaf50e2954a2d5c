"""What is checked before any process starts, beyond the schema: each refusal is one clear line."""

import re
from collections.abc import Iterator
from pathlib import Path

import hydra.utils

from pipelinerl.components import build, build_domain, build_packing, build_sampler
from pipelinerl.config import RunConfig
from pipelinerl.jobs import PlanError


def check_run_dir(run_dir: Path) -> None:
    if run_dir.exists() and any(run_dir.iterdir()):
        raise PlanError(f"run directory {run_dir} exists and is never overwritten; set run_dir to a new one")


SINGLE = ("objective", "advantage", "normalisation", "health", "trainer")
LISTS = ("filters", "regularisers", "rewards")
COUNTED_BY = {"filters": "reason", "rewards": "name"}
SAMPLED_PROBLEMS = 64  # of each side, whose prompts are measured


def needs_model(config: RunConfig) -> bool:
    """Whether servers or trainer load `model.path`; the scripted ones do not."""
    return config.inference.model is None or hydra.utils.get_class(config.trainer.target).needs_model


def check_model(config: RunConfig) -> None:
    """The model directory, its chat template, and that its context holds prompt and completion."""
    from transformers import AutoConfig, AutoTokenizer

    path = Path(config.model.path)
    if not (path / "config.json").is_file():
        raise PlanError(f"model.path={path} is not a Hugging Face model directory (no config.json there)")
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    if not tokenizer.chat_template:
        raise PlanError(f"the tokenizer in model.path={path} has no chat template; add chat_template.jinja")
    context = AutoConfig.from_pretrained(path).max_position_embeddings
    wanted = config.sampling.max_prompt_tokens + config.sampling.max_tokens
    if wanted > context:
        raise PlanError(
            f"sampling.max_prompt_tokens + sampling.max_tokens = {wanted} exceeds the model's context of "
            f"{context}; lower one of them"
        )
    lengths = (
        len(tokenizer.apply_chat_template(p, add_generation_prompt=True, return_dict=False))
        for p in _sampled_prompts(config)
    )
    longest = max(lengths, default=0)
    if longest > config.sampling.max_prompt_tokens:
        raise PlanError(
            f"the domain's prompts have up to {longest} tokens; sampling.max_prompt_tokens is "
            f"{config.sampling.max_prompt_tokens}"
        )


def _sampled_prompts(config: RunConfig) -> Iterator[list[dict[str, str]]]:
    domain = build_domain(config)
    if config.plan and domain.fetches:
        return
    for index in range(min(SAMPLED_PROBLEMS, domain.train_size)):
        yield domain.train_problem(index).messages
    for index in range(min(SAMPLED_PROBLEMS, domain.heldout_size)):
        yield domain.heldout_problem(index).messages


def check_gpus(config: RunConfig) -> None:
    import torch

    found = torch.cuda.device_count()
    if config.world.gpus > found:
        raise PlanError(f"world.gpus={config.world.gpus}, but torch sees {found}; 0 runs on the CPU")


def check_components(config: RunConfig) -> None:
    """Builds every component that the configuration names, with its options."""
    domain = _checked("domain", lambda: build_domain(config))
    if not (config.plan and domain.fetches):
        _checked("domain", lambda: (domain.train_size, domain.heldout_size))
        _checked("sampler", lambda: build_sampler(config, domain))
    _checked("packing", lambda: build_packing(config))
    named = [(name, getattr(config, name)) for name in SINGLE]
    named += [(name, component) for name in LISTS for component in getattr(config, name)]
    words = {name: [] for name in COUNTED_BY}
    for name, component in named:
        part = _checked(name, lambda component=component: build(component))
        _check_needs(config, name, part)
        if name in COUNTED_BY:
            words[name].append(_word_of(part, name))
    if len(words["rewards"]) > len(set(words["rewards"])):
        raise PlanError(f"rewards: two terms have the same name, of {', '.join(words['rewards'])}")


def _word_of(part: object, name: str) -> str:
    attribute = COUNTED_BY[name]
    if not getattr(part, attribute, None):
        raise PlanError(f"{name}: {type(part).__name__} has no `{attribute}`, by which it is counted")
    return getattr(part, attribute)


def _check_needs(config: RunConfig, name: str, part: object) -> None:
    """A part says by an attribute what it cannot do without."""
    given = {
        "needs_reference": (config.reference, "a reference server: set reference=transformers"),
        "needs_values": (getattr(config.trainer, "value_head", False), "trainer.value_head=true"),
        "needs_repetition": (config.rollout.repetition, "rollout.repetition: nothing is stopped without"),
    }
    for need, (there, how) in given.items():
        if getattr(part, need, False) and not there:
            raise PlanError(f"{name}: {type(part).__name__} needs {how}")


def _checked(name: str, make):
    """Hydra wraps what a constructor raises; the cause says it plainly."""
    try:
        return make()
    except Exception as error:
        cause = error.__cause__ or error
        if missing := re.search(r"No module named '(\w+)'", str(cause)):
            raise PlanError(
                f"{name} needs the package {missing[1]}: the README's dependencies say which extra has it"
            ) from error
        raise PlanError(f"{name}: {' '.join(str(cause).split())}") from error
