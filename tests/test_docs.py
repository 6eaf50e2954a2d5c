"""What pages quote, link to, name and run exists."""

import re
import shlex
import textwrap
from pathlib import Path

import pytest

from pipelinerl.launcher.composing.compose import compose_config

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
def test_the_page_on_token_fields_quotes_its_example(file):
    text = (ROOT / "docs" / "token-fields.md").read_text()
    title = f"# {file}\n" if file.endswith(".py") else "```yaml\n"
    assert f"{title}{(ROOT / 'examples' / 'token_fields' / file).read_text()}```" in text


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
    of_now = r"(?!\w|`? at [0-9a-f]{8})"  # a file of an earlier commit is named with it
    for name in re.findall(rf"(?<![\w/.])(?:{packages})/[\w/.]+\.\w+{of_now}", page.read_text()):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_that_a_page_names_exist(page):
    ours = (
        "contracts",
        "extensions",
        "inference_adapters",
        "trainer_adapters",
        "pipelinerl",
        "benchmarks",
        "tests",
    )
    for name in re.findall(r"python -m ([\w.]+\w)", page.read_text()):
        if name.split(".")[0] in ours:
            path = ROOT / name.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


def runs_of_pages() -> list[str]:
    """Returns what follows `python launch.py` in the pages that a newcomer reads first."""
    pages = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("demo", "configure", "cluster"))]
    found = {run for page in pages for run in re.findall(r"python launch\.py ([^`\n#]+)", page.read_text())}
    return sorted(run.strip() for run in found if not re.match(r"key=value|--help|--verbose", run))


@pytest.mark.parametrize("run", runs_of_pages())
def test_the_settings_of_a_page_are_understood(run):
    settings = shlex.split(run)
    compose_config([setting for setting in settings if not setting.startswith(("run_dir=", "resume="))])


def test_the_readme_is_short_and_names_every_page():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 1100
    others = {page.name for page in PAGES} - {"README.md", "index.md"}  # the second is the site's README
    assert [name for name in sorted(others) if name not in text] == []
