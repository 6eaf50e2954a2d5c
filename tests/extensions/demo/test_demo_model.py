import dataclasses

import pytest

from extensions.demo.build import make_demo_model
from extensions.demo.recipe import configured
from extensions.demo.recipes.sums import Options, SumExamples, SumsRecipe
from extensions.demo.recipes.thinking import ThinkingRecipe, Thoughts
from extensions.demo.tokenizer import byte_tokenizer

CONTEXT = 256
HASTY = Options(pool_size=300, batch_size=8, steps=4, noise_steps=2, evaluation_problems=8)


@pytest.fixture(scope="module")
def examples():
    return SumExamples(configured("reasoning_gym", seed=0), byte_tokenizer(CONTEXT), pool_size=300, seed=0)


def test_the_chat_template_knows_three_roles():
    tokenizer = byte_tokenizer(CONTEXT)
    messages = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1 + 2 ="},
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": "2 + 2 ="},
    ]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|system|>Add.<|user|>1 + 2 =<|assistant|>3<|end|><|user|>2 + 2 =<|assistant|>"
    closed = tokenizer.apply_chat_template(messages[:3], tokenize=False)
    assert closed == "<|system|>Add.<|user|>1 + 2 =<|assistant|>3<|end|>"
    with pytest.raises(Exception, match="no role tool"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "3"}], tokenize=False)


def test_a_finished_model_is_kept_and_another_recipe_replaces_it(tmp_path):
    out, lines = tmp_path / "demo", []
    first = make_demo_model(out, SumsRecipe(0, HASTY), lines.append)
    weights = (out / "model.safetensors").read_bytes()
    assert make_demo_model(out, SumsRecipe(0, HASTY), lines.append) == first
    assert "already holds" in lines[-1] and (out / "model.safetensors").read_bytes() == weights

    make_demo_model(out, SumsRecipe(1, HASTY), lines.append)
    assert (out / "model.safetensors").read_bytes() != weights
    make_demo_model(out, SumsRecipe(1, dataclasses.replace(HASTY, steps=5)), lines.append)
    assert "already holds" not in lines[-1]
    assert list(tmp_path.iterdir()) == [out]


def test_what_is_plain_and_what_thinks_are_different_models(tmp_path):
    sums, thinks = tmp_path / "sums", tmp_path / "thinks"
    plain = make_demo_model(sums, SumsRecipe(0, HASTY))
    assert plain["fingerprint"].keys() == {"seed", "options", "domain"}
    thoughts = Thoughts(most_thoughts=4, answer_steps=1, thinking_steps=2)
    thinking = make_demo_model(thinks, ThinkingRecipe(0, sums, HASTY, thoughts))
    assert (
        thinking["fingerprint"]["most_thoughts"] == 4
        and thinking["fingerprint"]["sums"] == plain["fingerprint"]
    )
    assert "ThinkingSums" in thinking["fingerprint"]["domain"]["_target_"]
    with pytest.raises(ValueError, match="other is not a demo model; make it"):
        make_demo_model(thinks, ThinkingRecipe(0, tmp_path / "other", HASTY))


def test_a_failed_build_leaves_nothing_and_a_strangers_directory_is_not_touched(tmp_path):
    with pytest.raises(ValueError, match="empty"):
        make_demo_model(tmp_path / "demo", SumsRecipe(0, dataclasses.replace(HASTY, batch_size=0)))
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match="not a demo model"):
        make_demo_model(tmp_path / "mine", SumsRecipe(0, HASTY))


def test_examples_have_the_prompts_of_rollouts_and_a_loss_on_the_solution_alone(examples):
    domain, tokenizer = configured("reasoning_gym", seed=0), byte_tokenizer(CONTEXT)
    asked = {p.messages[0]["content"]: p.data["answer"] for p in map(domain.train_problem, range(300))}
    ids, labels = next(examples.batches(examples.as_asked, 32))
    for row, row_labels in zip(ids, labels, strict=True):
        prompt = tokenizer.decode(row[(row_labels == -100) & (row != tokenizer.pad_token_id)])
        question = prompt.removeprefix("<|user|>").removesuffix("<|assistant|>")
        assert tokenizer.decode(row_labels[row_labels != -100]) == asked[question] + "<|end|>"
    assert len(examples.as_asked) == 300 and len(examples.distinct) == len(asked)
