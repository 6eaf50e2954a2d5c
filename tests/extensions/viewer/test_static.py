"""The viewer's own files, as text: what they never use."""

import re

import pytest

from extensions.viewer.server.app import STATIC

MODULES = {path.name: path.read_text() for path in sorted(STATIC.glob("*.js"))}
NEVER = (
    r"\.innerHTML", r"\.outerHTML", r"insertAdjacentHTML", r"document\.write", r"createContextualFragment",
    r"parseFromString", r"srcdoc", r"\beval\b", r"new Function", r"""setAttribute\(\s*["'](?:style|on\w+)""",
    r"\.on[a-z]+\s*=[^=]", r"""["']?\bon[a-z]+["']?\s*:\s*(?:\(|function|async|[a-z]+\s*=>)""",
    r"""(?:setTimeout|setInterval)\(\s*["'`]""", r"javascript:", r"\bimport\s*\(", r"import\.meta",
    r"^export (?:default|\{)", r"^(?:const|let) .*= await\b|^await\b",
)  # fmt: skip


def code_of(text: str) -> str:
    """Returns a module without its comments."""
    return re.sub(r"^\s*//[^\n]*|/\*\*.*?\*/", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("never", NEVER)
def test_no_module_makes_text_into_html_or_code(never):
    found = [name for name, text in MODULES.items() if re.search(never, code_of(text), re.MULTILINE)]
    assert found == []


def test_the_page_and_its_style_ask_for_nothing_else():
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == [""] and " style=" not in page
    for sheet in STATIC.rglob("*.css"):
        assert not re.search(r"url\(|@import", sheet.read_text()), sheet
