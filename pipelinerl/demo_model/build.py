"""Builds the demo model and keeps it: a finished one of the same recipe and seed is not built again.

The directory appears under its name only when it is complete.
"""

import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from pipelinerl.demo_model.lessons import Lessons, demo_domain
from pipelinerl.demo_model.phrasing import PLAIN, Plain
from pipelinerl.demo_model.tokenizer import byte_tokenizer
from pipelinerl.demo_model.training import Report, adamw, fit, muon_and_adamw, sampled_success

MAX_LENGTH = 256
STAMP = "demo_model.json"  # what was built, and how good it is; the last file written

Say = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """Three lessons: the rule, the task as it is asked, and the slips that make the model unreliable."""

    pool_size: int = 60_000  # training problems drawn; about 11 000 distinct ones
    batch_size: int = 128
    steps: int = 850  # of the first two lessons, under one schedule of the learning rate
    # The first lesson asks distinct problems about equally often: few of them are easy, so the rule pays
    # more than remembering. A tenth is as asked, so that the easy ones are not forgotten.
    rule_share: float = 0.6
    as_asked_share: float = 0.1
    slip_steps: int = 60
    wrong_share: float = 0.65  # of the slips' solutions: wrong by a plausible amount
    evaluation_problems: int = 500


def build(out: Path, seed: int, recipe: Recipe = Recipe(), say: Say = print, phrasing: Plain = PLAIN) -> dict:
    """Returns the stamp of the model in `out`, built now or before."""
    wanted = {
        "seed": seed,
        "recipe": asdict(recipe),
        "domain": phrasing.domain_config.read_text(),
        **asdict(phrasing),
    }
    finished = read_stamp(out)
    if finished is not None and finished["made_of"] == wanted:
        say(f"{out} already holds this model: sampled success {finished['success']:.2f}")
        return finished
    if out.exists() and finished is None:
        raise ValueError(f"{out} exists and is not a demo model; choose another --out")

    out.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        stamp = {"made_of": wanted, **_make(building, seed, recipe, say, phrasing)}
        (building / STAMP).write_text(json.dumps(stamp, indent=2))
        if out.exists():
            shutil.rmtree(out)
        building.chmod(0o755)
        building.rename(out)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    say(f"{out}: sampled success {stamp['success']:.2f}, {stamp['seconds']:.0f} s")
    return stamp


def read_stamp(out: Path) -> dict | None:
    path = out / STAMP
    return json.loads(path.read_text()) if path.exists() else None


def new_model(tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
    """About 0.8 M parameters."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},  # texts of twenty tokens
        tie_word_embeddings=True,
        initializer_range=0.06,  # 0.02 suits wide models; here it learns half as fast
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return Qwen2ForCausalLM(config)


def _make(directory: Path, seed: int, recipe: Recipe, say: Say, phrasing: Plain) -> dict:
    torch.manual_seed(seed)
    start = time.monotonic()
    domain = demo_domain(seed, phrasing)
    tokenizer = byte_tokenizer(MAX_LENGTH)
    model = new_model(tokenizer)
    lessons = Lessons(domain, tokenizer, recipe.pool_size, seed)
    heldout = [domain.heldout_problem(i) for i in range(recipe.evaluation_problems)]

    def measure(stage: str) -> float:
        success = sampled_success(model, tokenizer, domain, heldout, phrasing.max_tokens)
        say(f"{stage}: sampled success {success:.2f}, {time.monotonic() - start:.0f} s")
        return success

    def report(step: int, loss: float) -> None:
        if step % 100 == 0:
            say(f"  step {step}: loss {loss:.3f}, {time.monotonic() - start:.0f} s")

    taught = _teach(model, lessons, recipe, phrasing, measure, report)
    success = _make_unreliable(model, lessons, recipe, phrasing, measure)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return {"taught": taught, "success": success, "seconds": round(time.monotonic() - start, 1)}


def _teach(
    model: Qwen2ForCausalLM,
    lessons: Lessons,
    recipe: Recipe,
    phrasing: Plain,
    measure: Callable[[str], float],
    report: Report,
) -> float:
    mixed_in = int(len(lessons.distinct) * recipe.as_asked_share / (1 - recipe.as_asked_share))
    rule = lessons.batches(lessons.distinct + lessons.as_asked[:mixed_in], recipe.batch_size)
    task = lessons.batches(lessons.as_asked, recipe.batch_size, phrasing.taught)
    steps = recipe.steps + phrasing.more_steps
    rule_steps = int(recipe.rule_share * steps)
    fit(
        model,
        muon_and_adamw(model),
        itertools.chain(itertools.islice(rule, rule_steps), task),
        steps,
        warmup=50,
        report=report,
    )
    if phrasing.thinking_steps:
        thinking = lessons.batches(lessons.as_asked, recipe.batch_size, phrasing.thought)
        optimizers = adamw(list(model.parameters()), learning_rate=1e-3)
        fit(model, optimizers, thinking, phrasing.thinking_steps, warmup=5)
    return measure("taught")


def _make_unreliable(
    model: Qwen2ForCausalLM,
    lessons: Lessons,
    recipe: Recipe,
    phrasing: Plain,
    measure: Callable[[str], float],
) -> float:
    slips = lessons.batches(lessons.as_asked, recipe.batch_size, phrasing.thought, recipe.wrong_share)
    fit(model, adamw(list(model.parameters()), learning_rate=5e-4), slips, recipe.slip_steps, warmup=5)
    return measure("unreliable on purpose")
