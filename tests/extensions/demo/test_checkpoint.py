"""The demo's model is a part of the project: what its recipe makes, in half precision, at most 2 MB."""

import json

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from extensions.demo.build import make_demo_model, weights_hash
from extensions.demo.local_client import LocalChatClient
from extensions.demo.prompts import Prompts
from extensions.demo.recipe import read_stamp
from extensions.demo.recipes.sums import SumsRecipe
from extensions.demo.registry import DEMO_MODELS, SEED
from extensions.demo.tokenizer import byte_tokenizer

DIRECTORY = DEMO_MODELS["sums"].directory
STAMP = read_stamp(DIRECTORY)
RECIPE = SumsRecipe(SEED)
AGAIN = "its recipe has changed: python -m extensions.demo sums makes the model again"


def test_the_checkpoint_is_what_its_recipe_makes():
    assert STAMP["fingerprint"] == json.loads(json.dumps(RECIPE.fingerprint)), AGAIN
    lines: list[str] = []
    assert make_demo_model(DIRECTORY, RECIPE, lines.append) == STAMP
    assert "already holds this model" in lines[0]


def test_its_weights_are_those_that_its_stamp_names():
    assert weights_hash(DIRECTORY) == STAMP["weights"]
    assert sum(file.stat().st_size for file in DIRECTORY.iterdir()) < 2_000_000


def test_its_tokenizer_is_that_of_the_other_demo_models(tmp_path):
    byte_tokenizer(RECIPE.context).save_pretrained(tmp_path)
    for file in tmp_path.iterdir():
        assert (DIRECTORY / file.name).read_text() == file.read_text()


def test_half_precision_is_loaded_as_float32_without_a_loss():
    stored = load_file(DIRECTORY / "model.safetensors")
    assert {weights.dtype for weights in stored.values()} == {torch.float16}
    for options in ({}, {"dtype": torch.float32}):  # as engines without a dtype load it, and as a run does
        model = AutoModelForCausalLM.from_pretrained(DIRECTORY, **options)
        loaded = dict(model.named_parameters())
        assert loaded.keys() == stored.keys()
        assert {weights.dtype for weights in loaded.values()} == {torch.float32}
        assert all(torch.equal(loaded[name], weights.float()) for name, weights in stored.items())


def test_it_is_as_good_as_its_stamp_says():
    tokenizer = AutoTokenizer.from_pretrained(DIRECTORY)
    model = AutoModelForCausalLM.from_pretrained(DIRECTORY).eval()
    client = LocalChatClient(model, Prompts(tokenizer, DIRECTORY), RECIPE.max_tokens)
    domain = RECIPE.domain()
    torch.manual_seed(0)
    heldout = range(RECIPE.options.evaluation_problems)
    found = client.success(domain, [domain.heldout_problem(i) for i in heldout])
    assert abs(found - STAMP["success"]) < 0.1 < STAMP["success"] < 0.5 < 0.9 < STAMP["supervised"]
