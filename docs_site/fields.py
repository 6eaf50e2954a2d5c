"""An extension of griffe: what the sources say of fields and arguments, as the reference shows it.

A field has its meaning in a comment at its line, or as the description of a pydantic field. An argument has a
line `name: meaning` in a docstring.
"""

import ast
import re
from typing import Any

from griffe import Attribute, Docstring, Extension, Object

ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")
SYNTAX = re.compile(r"[\[\]*<]")
COMMENT = re.compile(r"(?<=\s\s)# (?!noqa)(.*)$")


class Fields(Extension):
    """Adds the meanings of fields, and makes lists of arguments."""

    def on_attribute_instance(self, *, node: Any, attr: Attribute, **_: Any) -> None:
        """Reads the meaning of a field without a docstring."""
        meaning = commented(attr)
        call = getattr(node, "value", None)
        for keyword in call.keywords if isinstance(call, ast.Call) else []:
            if keyword.arg == "description" and isinstance(keyword.value, ast.Constant):
                meaning = keyword.value.value
                attr.value = without(call, keyword)
        if not attr.docstring and meaning:
            attr.docstring = Docstring(plain(meaning), parent=attr)

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Makes a list of the arguments in a docstring."""
        if obj.docstring:
            obj.docstring.value = listed(obj.docstring.value)


def without(call: ast.Call, keyword: ast.keyword) -> str | None:
    """Returns the source of a call of pydantic's Field without a keyword; None if nothing remains."""
    others = [other for other in call.keywords if other is not keyword]
    return ast.unparse(ast.Call(call.func, call.args, others)) if call.args or others else None


def commented(attr: Attribute) -> str:
    """Returns the comment at the line of a field, or nothing."""
    comment = attr.lineno and COMMENT.search(attr.lines_collection[attr.filepath][attr.lineno - 1])
    return comment[1] if comment else ""


def listed(text: str) -> str:
    """Returns a docstring whose paragraphs of `name: meaning` lines are lists. Other text stays plain."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(p if p.startswith("    ") else _listed_paragraph(plain(p)) for p in paragraphs)


def plain(text: str) -> str:
    """Returns text in which brackets and stars have no meaning in Markdown. Code is kept."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else SYNTAX.sub(_escaped, part) for part in parts)


def _escaped(found: re.Match[str]) -> str:
    return "&lt;" if found[0] == "<" else f"\\{found[0]}"


def _listed_paragraph(text: str) -> str:
    lines = text.splitlines()
    if not lines or not ARGUMENT.match(lines[0]):
        return text
    return "\n".join(_item(line) for line in lines)


def _item(line: str) -> str:
    return ARGUMENT.sub(r"* `\1`: ", line) if ARGUMENT.match(line) else f"  {line.strip()}"
