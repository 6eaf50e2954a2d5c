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
from pipelinerl.demo_model.phrasing import PLAIN, THINKING, Plain, Thinking
from pipelinerl.demo_model.tokenizer import byte_tokenizer
from pipelinerl.demo_model.training import Report, adamw, fit, muon_and_adamw, sampled_success

MAX_LENGTH = 256
STAMP = "demo_model.json"  # what was built, and how good it is; the last file written

Say = Callable[[str], None]
Teach = Callable[[Qwen2ForCausalLM, Lessons, Report], None]


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


def build(out: Path, seed: int, recipe: Recipe = Recipe(), say: Say = print) -> dict:
    """The model of the sums. Returns the stamp of what is in `out`, built now or before."""
    wanted = {"seed": seed, "recipe": asdict(recipe), "domain": PLAIN.domain_config.read_text()}

    def teach(model: Qwen2ForCausalLM, lessons: Lessons, report: Report) -> None:
        _teach_sums(model, lessons, recipe, report)

    def make(directory: Path) -> dict:
        torch.manual_seed(seed)
        return _make(directory, new_model(byte_tokenizer(MAX_LENGTH)), teach, seed, recipe, say, PLAIN)

    return _kept(out, wanted, make, say)


def build_thinking(
    out: Path,
    sums: Path,
    seed: int,
    recipe: Recipe = Recipe(),
    say: Say = print,
    phrasing: Thinking = THINKING,
) -> dict:
    """The one that thinks, from the finished one in `sums`. Returns the stamp of what is in `out`."""
    knows_sums = read_stamp(sums)
    if knows_sums is None:
        raise ValueError(f"{sums} is not a demo model; make it: python -m pipelinerl.demo_model --out {sums}")
    wanted = {
        "seed": seed,
        "recipe": asdict(recipe),
        "domain": phrasing.domain_config.read_text(),
        "sums": knows_sums["made_of"],
        **asdict(phrasing),
    }

    def teach(model: Qwen2ForCausalLM, lessons: Lessons, report: Report) -> None:
        _teach_thinking(model, lessons, recipe, phrasing, report)

    def make(directory: Path) -> dict:
        torch.manual_seed(seed)
        return _make(directory, Qwen2ForCausalLM.from_pretrained(sums), teach, seed, recipe, say, phrasing)

    return _kept(out, wanted, make, say)


def _kept(out: Path, wanted: dict, make: Callable[[Path], dict], say: Say) -> dict:
    finished = read_stamp(out)
    if finished is not None and finished["made_of"] == wanted:
        say(f"{out} already holds this model: sampled success {finished['success']:.2f}")
        return finished
    if out.exists() and finished is None:
        raise ValueError(f"{out} exists and is not a demo model; choose another --out")

    out.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        stamp = {"made_of": wanted, **make(building)}
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


def _make(
    directory: Path,
    model: Qwen2ForCausalLM,
    teach: Teach,
    seed: int,
    recipe: Recipe,
    say: Say,
    phrasing: Plain,
) -> dict:
    start = time.monotonic()
    domain = demo_domain(seed, phrasing)
    tokenizer = byte_tokenizer(MAX_LENGTH)
    lessons = Lessons(domain, tokenizer, recipe.pool_size, seed)
    heldout = [domain.heldout_problem(i) for i in range(recipe.evaluation_problems)]

    def measure(stage: str) -> float:
        success = sampled_success(model, tokenizer, domain, heldout, phrasing.max_tokens)
        say(f"{stage}: sampled success {success:.2f}, {time.monotonic() - start:.0f} s")
        return success

    def report(step: int, loss: float) -> None:
        if step % 100 == 0:
            say(f"  step {step}: loss {loss:.3f}, {time.monotonic() - start:.0f} s")

    teach(model.train(), lessons, report)
    taught = measure("taught")
    slips = lessons.batches(lessons.as_asked, recipe.batch_size, phrasing.thought, recipe.wrong_share)
    fit(model, adamw(list(model.parameters()), learning_rate=5e-4), slips, recipe.slip_steps, warmup=5)
    success = measure("unreliable on purpose")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return {"taught": taught, "success": success, "seconds": round(time.monotonic() - start, 1)}


def _teach_sums(model: Qwen2ForCausalLM, lessons: Lessons, recipe: Recipe, report: Report) -> None:
    mixed_in = int(len(lessons.distinct) * recipe.as_asked_share / (1 - recipe.as_asked_share))
    rule = lessons.batches(lessons.distinct + lessons.as_asked[:mixed_in], recipe.batch_size)
    task = lessons.batches(lessons.as_asked, recipe.batch_size)
    batches = itertools.chain(itertools.islice(rule, int(recipe.rule_share * recipe.steps)), task)
    fit(model, muon_and_adamw(model), batches, recipe.steps, warmup=50, report=report)


def _teach_thinking(
    model: Qwen2ForCausalLM, lessons: Lessons, recipe: Recipe, phrasing: Thinking, report: Report
) -> None:
    after_thoughts = lessons.batches(lessons.as_asked, recipe.batch_size, phrasing.taught)
    fit(model, muon_and_adamw(model), after_thoughts, phrasing.answer_steps, warmup=20, report=report)
    thinking = lessons.batches(lessons.as_asked, recipe.batch_size, phrasing.thought)
    optimizers = adamw(list(model.parameters()), learning_rate=1e-3)
    fit(model, optimizers, thinking, phrasing.thinking_steps, warmup=5)
