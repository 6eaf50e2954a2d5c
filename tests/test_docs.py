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


@pytest.mark.parametrize("file", ["confident_sums.py", "weighed_objective.py"])
def test_the_page_on_token_fields_quotes_its_example(file):
    text = (ROOT / "docs" / "token-fields.md").read_text()
    assert f"# {file}\n{(ROOT / 'examples' / 'token_fields' / file).read_text()}```" in text


def test_the_page_quotes_the_experiment_of_a_token_field():
    text = (ROOT / "docs" / "token-fields.md").read_text()
    experiment = (ROOT / "examples" / "token_fields" / "conf" / "exp" / "confidence.yaml").read_text()
    assert f"```yaml\n{experiment}```" in text


PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_exists(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target, _, anchor in (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", text)):
        if target.startswith("http"):
            continue
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def anchors(page: Path) -> list[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page):
    if page.name == "CHANGELOG.md":  # names what was, too
        return
    packages = "contracts|inference_adapters|trainer_adapters|pipelinerl|tests|benchmarks|examples|docs"
    for name in re.findall(rf"(?<![\w/.])(?:{packages})/[\w/.]+\.\w+", page.read_text()):
        assert (ROOT / name).exists(), name
