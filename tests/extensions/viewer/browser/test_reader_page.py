"""The reader in the browser: every token with what the records say of it."""

import pytest

from contracts.records import VersionSpan
from tests.builders import completion
from tests.extensions.viewer.browser.poison import byte_level_tokenizer
from tests.extensions.viewer.browser.tabs import Tab, run_fragment
from tests.extensions.viewer.recorded_run import RecordedRun, member_of
from tests.extensions.viewer.viewers import viewing

pytestmark = pytest.mark.engines
# All that the page has of its tokens, turn by turn.
TOKENS = """() => [...document.querySelectorAll(".turn")].map((turn) => ({
    prompt: turn.querySelector(".prompt-text").textContent,
    pieces: [...turn.querySelectorAll(".token")].map(
      (token) => ({ text: token.textContent, ...token.dataset })),
    borders: [...turn.querySelectorAll("[data-boundary=version]")].map((border) => [
      border.dataset.label, Number(border.nextElementSibling.dataset.index)]),
}))"""


def shown(tab: Tab, run: str, name: str) -> list[dict]:
    tab.go(run_fragment(run, "rollouts", *name.split("/")))
    return tab.page.evaluate(TOKENS)


def numbers(pieces: list[dict], key: str) -> list[float]:
    return [float(part) for piece in pieces for part in piece[key].split(",") if part != ""]


# Characters of one, two, three and four bytes, of which a token is one each; the end breaks off in one.
TEXT = "naïve — 数学 😀\n".encode() + "é".encode()[:1]


@pytest.fixture
def bytewise(tmp_path) -> RecordedRun:
    """A run whose model's tokens are bytes, with a rollout of two versions and two requests."""
    byte_level_tokenizer(tmp_path / "model")
    run = RecordedRun(tmp_path / "run", model={"path": str(tmp_path / "model")})
    run.begin()
    change = TEXT.index("学".encode()) + 1  # within the character
    made = completion(
        list(b"2 + 2 = ?"),
        list(TEXT),
        spans=[VersionSpan(0, 0, change), VersionSpan(1, change, len(TEXT))],
        segments=[0, change],
    )
    run.step(0, [[member_of(0, 0, 0, 1.0, completions=[made]), member_of(0, 1, 0, 0.0)]], trained=1)
    run.end(1)
    return run


def test_a_character_of_several_tokens_is_one_piece_with_all_of_them(bytewise, tab):
    with viewing(bytewise.run_dir) as viewer:
        tab.open(viewer.url)
        (turn,) = shown(tab, "run", "train/0")
        pieces = turn["pieces"]
        text = TEXT.decode(errors="replace")
        assert [piece["text"] for piece in pieces] == [c if c != "\n" else "↵\n" for c in text]
        sizes = [len(piece["ids"].split(",")) for piece in pieces]
        assert sizes == [len(c.encode()) if c != "\ufffd" else 1 for c in text]
        assert numbers(pieces, "ids") == list(TEXT)
        assert turn["prompt"] == "2 + 2 = ?"
        (answer,) = viewer.get("runs/run/rollouts/train/0")["completions"]
        assert numbers(pieces, "lags") == answer["lags"]
        assert numbers(pieces, "advantages") == answer["advantages"]
        in_loss = [part for piece in pieces for part in piece["loss"].split(",")]
        assert in_loss == ["true" if kept else "false" for kept in answer["in_loss"]]
        change = TEXT.index("学".encode())
        assert turn["borders"] == [["v1", change]]  # in front of the character in which the weights changed
        assert tab.find("[data-boundary=segment]").count() == 1
