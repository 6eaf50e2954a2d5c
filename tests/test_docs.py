"""The pages that write an adapter quote it as it is."""

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("page", "example"),
    [("write-a-trainer-adapter", "plain_trainer"), ("write-an-inference-adapter", "naive_server")],
)
def test_a_page_quotes_its_example(page, example):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    source = (ROOT / "examples" / f"{example}.py").read_text()
    blocks = re.findall(r"```python\n(.*?)\n```", text, re.DOTALL)[:-1]  # the last is a test of one's own
    quoted = [piece for block in blocks for piece in block.split("\n\n")]
    assert len(quoted) > 7
    assert [p for p in quoted if p not in source and textwrap.indent(p, "    ") not in source] == []


@pytest.mark.parametrize("file", ["confident_sums.py", "weighed_objective.py", "conf/exp/confidence.yaml"])
def test_the_page_that_writes_an_objective_quotes_the_example_of_a_token_field(file):
    text = (ROOT / "docs" / "write-an-objective.md").read_text()
    assert f"# {file}\n{(ROOT / 'examples' / 'token_fields' / file).read_text()}```" in text
