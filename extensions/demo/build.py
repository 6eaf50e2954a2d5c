"""Makes a demo model, unless a finished one with the same fingerprint exists.

The directory gets its name only when it is complete. Weights are stored in half precision.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import Qwen2ForCausalLM

from contracts.support.complete_directory import complete_directory
from extensions.demo.local_client import LocalChatClient
from extensions.demo.prompts import Prompts
from extensions.demo.recipe import STAMP, Recipe, read_stamp
from extensions.demo.tokenizer import byte_tokenizer
from extensions.demo.training import fit

Say = Callable[[str], None]
SAID_EVERY = 50  # steps between two reports


def make_demo_model(out: Path, recipe: Recipe, say: Say = print) -> dict:
    """Makes the model in `out` if necessary. Returns its stamp."""
    finished = read_stamp(out)
    if finished is not None and finished.get("fingerprint") == recipe.fingerprint:
        say(f"{out} already holds this model: sampled success {finished['success']:.2f}")
        return finished
    if out.exists() and finished is None:
        raise ValueError(f"{out} exists and is not a demo model; choose another --out")

    with complete_directory(out) as building:
        stamp = {"fingerprint": recipe.fingerprint, **_make(building, recipe, say)}
        stamp["weights"] = weights_hash(building)
        (building / STAMP).write_text(json.dumps(stamp, indent=2))  # the last file
        if out.exists():
            shutil.rmtree(out)
    say(f"{out}: sampled success {stamp['success']:.2f}, {stamp['seconds']:.0f} s")
    return stamp


def weights_hash(directory: Path) -> str:
    """Returns the SHA-256 of a demo model's weights."""
    return hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()


def save_in_half(model: Qwen2ForCausalLM, directory: Path) -> None:
    """Saves the weights in half precision. The configuration names float32, in which they load."""
    half = {name: parameter.detach().half() for name, parameter in model.named_parameters()}
    model.save_pretrained(directory, state_dict=half)


def _make(directory: Path, recipe: Recipe, say: Say) -> dict:
    start = time.monotonic()
    tokenizer = byte_tokenizer(recipe.context)
    tokenizer.save_pretrained(directory)
    torch.manual_seed(recipe.seed)
    client = LocalChatClient(
        recipe.initial_model(tokenizer).train(), Prompts(tokenizer, directory), recipe.max_tokens
    )
    domain = recipe.domain()
    heldout = [domain.heldout_problem(i) for i in range(recipe.options.evaluation_problems)]

    def report(steps: int, step: int, loss: float) -> None:
        if step % SAID_EVERY == 0:
            say(f"  step {step} of {steps}: loss {loss:.3f}, {time.monotonic() - start:.0f} s")

    successes = []
    for stage in recipe.stages(client, domain):
        said = partial(report, stage.steps)
        fit(client.model, stage.optimizers, stage.batches, stage.steps, stage.warmup, said)
        if stage.named:
            successes.append(client.success(domain, heldout))
            say(f"{stage.named}: sampled success {successes[-1]:.2f}, {time.monotonic() - start:.0f} s")
    save_in_half(client.model, directory)
    return {
        "supervised": successes[0],
        "success": successes[-1],
        "seconds": round(time.monotonic() - start, 1),
    }
