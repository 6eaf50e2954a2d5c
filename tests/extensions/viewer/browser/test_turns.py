"""A rollout of several turns in the browser: what is new in each prompt, and each answer in its parts."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from contracts.records import Completion
from extensions.viewer.__main__ import main
from tests.builders import completion
from tests.extensions.viewer.browser.poison import byte_level_tokenizer
from tests.extensions.viewer.browser.tabs import Tab, run_fragment
from tests.extensions.viewer.recorded_run import RecordedRun, member_of
from tests.extensions.viewer.viewers import viewing

pytestmark = pytest.mark.engines
END = 256  # a special token
THOUGHT = "I need <b>the tool</b>."
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 * 34", "n": 3}}\n</tool_call>'


def turn(prompt: list[int], answer: str) -> Completion:
    return completion(prompt, [*answer.encode(), END])


@pytest.fixture
def run_dir(tmp_path) -> Path:
    """A run with a rollout of three turns: a call, an answer, and a sequence of its own."""
    byte_level_tokenizer(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    run = RecordedRun(tmp_path / "run", model={"path": str(tmp_path / "model")})
    run.begin()
    first = turn([*b"12 * 34 or <|end|>?", END], f"<think>\n{THOUGHT}\n</think>\n\nI <i>call</i>.\n{CALL}")
    so_far = [*first.prompt_token_ids.tolist(), *first.token_ids.tolist()]
    second = turn([*so_far, *b"\n408\n"], "It is 408.")
    third = turn(list(b"And twice?"), "<think>\nTwice")
    called = {"completions": [first, second, third], "metrics": {"malformed_calls": 0.0}}
    malformed = {"completions": [turn([1], "<tool_call>{")], "metrics": {"malformed_calls": 1.0}}
    run.step(0, [[member_of(0, 0, 0, 1.0, **called), member_of(0, 1, 0, 0.0, **malformed)]], trained=0)
    run.end(1)
    return run.run_dir


def look(tab: Tab, second: str) -> None:
    """Asserts that the tab shows the turns of the first rollout, and goes on to the `second`."""
    tab.go(run_fragment("run", "rollouts", "train", 0))
    assert [prompt.replace("↵", "") for prompt in tab.texts(".prompt-text")] == [
        "12 * 34 or <|end|>?<|end|>",
        "\n408\n",
        "And twice?",
    ]
    assert tab.texts(".prompt-text .special") == ["<|end|>"]  # but not where the prompt spells it
    assert [tab.find(".prompt-text").nth(turn).is_visible() for turn in range(3)] == [True, True, False]
    assert "does not extend the turn before" in tab.text(".turn[data-turn='2'] .note")
    assert "new in the prompt, 5 of its" in tab.text(".turn[data-turn='1'] .prompt")
    assert [text.strip("↵\n") for text in tab.texts("[data-answer]")] == ["I <i>call</i>.", "It is 408."]
    assert tab.texts("[data-call] code") == ["calculator"]
    assert tab.texts("[data-call] dt, [data-call] dd") == ["expression", '"12 * 34"', "n", "3"]
    assert tab.texts("[data-thought] summary") == [
        f"thought, {len(THOUGHT)} tokens",
        "thought, 5 tokens, not ended",
    ]
    look_folded(tab)
    tab.go(run_fragment("run", "rollouts", "train", second))
    assert "1 call could not be parsed" in tab.text(".answer")
    assert tab.find(".raw .token").first.is_visible()  # as the last rollout was left


def look_folded(tab: Tab) -> None:
    """Asserts that keys unfold the thought and the tokens of a turn, and that arrows move over these."""
    thought = tab.find(".thought").first
    token = tab.find(".turn[data-turn='1'] .token").first
    assert not thought.is_visible() and not token.is_visible() and not tab.find(".sticky").is_visible()
    tab.find("[data-thought] summary").first.press("Enter")
    assert thought.is_visible() and thought.text_content() == THOUGHT
    tab.find(".turn[data-turn='1'] .raw summary").press("Enter")
    assert token.is_visible() and tab.find(".sticky").is_visible()
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("ArrowRight")
    assert "token 1" in tab.text("[data-readout]") and '"t"' in tab.text("[data-readout]")


@pytest.mark.parametrize("form", ["viewer", "report"])
def test_turns_are_shown_with_their_thoughts_and_calls(run_dir, form, tab, tmp_path):
    with viewing(run_dir) as viewer:
        second = viewer.get("runs/run/rollouts")["rows"][0]["r"].removeprefix("train/")
        if form == "viewer":
            tab.open(viewer.url)
            look(tab, second)
            return
    assert main([str(run_dir), "--export", str(tmp_path / "report.html")]) == 0
    tab.open((tmp_path / "report.html").as_uri())
    look(tab, second)


def test_a_prompt_with_roles_is_shown_as_messages_and_a_short_answer_with_its_tokens(tmp_path, tab):
    byte_level_tokenizer(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|user|>", "<|assistant|>"])
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    run = RecordedRun(tmp_path / "run", model={"path": str(tmp_path / "model")})
    run.begin()
    made = completion([END, *b"2 + <|user|>?", END + 1], [*b"4"])
    run.step(0, [[member_of(0, 0, 0, 1.0, completions=[made]), member_of(0, 1, 0, 0.0)]], trained=0)
    run.end(1)
    with viewing(run.run_dir) as viewer:
        tab.open(viewer.url)
        tab.go(run_fragment("run", "rollouts", "train", 0))
        assert tab.texts(".message .role, .message .sample") == ["user", "2 + <|user|>?"]
        whole = tab.find(".prompt-text")
        assert not whole.is_visible() and whole.text_content() == "<|user|>2 + <|user|>?<|assistant|>"
        assert tab.find(".token").first.is_visible()
        tab.go(run_fragment("run", "groups", 0))
        assert tab.texts(".message .sample") == ["2 + <|user|>?"]
        tab.go(run_fragment("run", "rollouts"))
        assert tab.texts("tr[data-rollout='train/0'] td.line") == ["2 + <|user|>?", "4"]
