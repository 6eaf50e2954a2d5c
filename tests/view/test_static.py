"""The viewer's own files, as text: what they never use, and that they hold together."""

import re
from pathlib import Path

import pytest

from pipelinerl.view.report_file import EXPORT, IMPORT, script_of
from pipelinerl.view.server.app import STATIC

MODULES = {path.name: path.read_text() for path in sorted(STATIC.glob("*.js"))}
NEVER = (
    r"\.innerHTML", r"\.outerHTML", r"insertAdjacentHTML", r"document\.write", r"createContextualFragment",
    r"parseFromString", r"srcdoc", r"\beval\b", r"new Function", r"""setAttribute\(\s*["'](?:style|on\w+)""",
    r"\.on[a-z]+\s*=[^=]", r"""["']?\bon[a-z]+["']?\s*:\s*(?:\(|function|async|[a-z]+\s*=>)""",
    r"""(?:setTimeout|setInterval)\(\s*["'`]""", r"javascript:", r"\bimport\s*\(", r"import\.meta",
    r"^export (?:default|\{)", r"^(?:const|let) .*= await\b|^await\b",
)  # fmt: skip
TOP_LEVEL = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|var|class) +(\w+)", re.MULTILINE)
NAMED_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([^"]+)";$', re.MULTILINE)
EXPORTED = re.compile(r"^export (?:async )?(?:function|const|let|class) +(\w+)", re.MULTILINE)


def code_of(text: str) -> str:
    """Returns a module without its comments."""
    return re.sub(r"^\s*//[^\n]*|/\*\*.*?\*/", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("never", NEVER)
def test_no_module_makes_text_into_html_or_code(never):
    found = [name for name, text in MODULES.items() if re.search(never, code_of(text), re.MULTILINE)]
    assert found == []


@pytest.mark.parametrize("name", MODULES)
def test_every_import_is_a_name_that_the_other_module_exports(name):
    for statement in re.findall(r"^import .*?;\n", MODULES[name], re.MULTILINE | re.DOTALL):
        assert IMPORT.fullmatch(statement), statement
    for names, module in NAMED_IMPORT.findall(MODULES[name]):
        exported = set(EXPORTED.findall(MODULES[module]))
        wanted = {word.strip() for word in names.split(",") if word.strip()}
        assert wanted <= exported, f"{module} does not export {wanted - exported}"


def test_top_level_names_are_unique_over_all_modules():
    places: dict[str, list[str]] = {}
    for module, text in MODULES.items():
        for name in TOP_LEVEL.findall(text):
            places.setdefault(name, []).append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_every_file_can_be_reached_from_the_page():
    page = (STATIC / "index.html").read_text()
    reached = set(re.findall(r'(?:href|src)="static/([^"]+)"', page))
    waiting = [name for name in reached if name.endswith(".js")]
    while waiting:
        name = waiting.pop()
        assert (STATIC / name).is_file(), f"{name} is not there"
        for imported in IMPORT.findall((STATIC / name).read_text()):
            if imported not in reached:
                reached.add(imported)
                waiting.append(imported)
    own = {path.name for path in STATIC.iterdir() if path.is_file()}
    assert own - reached == {"index.html"}
    assert {path.name for path in (STATIC / "vendor").iterdir()} - {Path(n).name for n in reached} == {
        "uPlot.LICENSE"
    }


def test_the_page_and_its_style_ask_for_nothing_else():
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == [""] and " style=" not in page
    for sheet in STATIC.rglob("*.css"):
        assert not re.search(r"url\(|@import", sheet.read_text()), sheet


def test_what_is_vendored_has_its_licence():
    licence = (STATIC / "vendor" / "uPlot.LICENSE").read_text()
    assert "MIT" in licence and "Permission is hereby granted" in licence


def test_a_report_has_each_module_once_and_after_those_that_it_imports():
    script = script_of()
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    ends = {name: script.index(EXPORT.sub("", IMPORT.sub("", text))) for name, text in MODULES.items()}
    assert all(script.count(EXPORT.sub("", IMPORT.sub("", text))) == 1 for text in MODULES.values())
    for name, text in MODULES.items():
        for _, imported in NAMED_IMPORT.findall(text):
            assert ends[imported] < ends[name], f"{imported} comes after {name}"
