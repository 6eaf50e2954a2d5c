"""The site of docs/, which `make docs` builds: its navigation and its links."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from docs_site import hooks

ROOT = Path(__file__).resolve().parent.parent


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without the packages that it names."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def pages_of(nav: Any) -> Iterator[str]:
    """Yields the pages of a part of the navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(part)


def test_the_navigation_has_every_page_once():
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    docs = ROOT / "docs"
    assert sorted(pages_of(nav)) == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))


PAGE = """[a](b.md#c), ![d](../e.png), [`f[g]`](../contracts/h.py#L1) and [i
j](https://k.org/)
```
[l](../m)
```
"""


@pytest.mark.parametrize(
    ("repository", "link"),
    [
        ("", '<span title="contracts/h.py">`f[g]`</span>'),
        ("https://r.org", '[`f[g]`](https://r.org/contracts/h.py#L1 "contracts/h.py")'),
    ],
)
def test_links_to_files_outside_of_the_site_are_replaced(monkeypatch, repository, link):
    monkeypatch.setattr(hooks, "REPOSITORY", repository)
    page = SimpleNamespace(file=SimpleNamespace(src_uri="n.md"))
    assert hooks.on_page_markdown(PAGE, page) == PAGE.replace("[`f[g]`](../contracts/h.py#L1)", link)


def test_links_of_a_page_in_a_folder_are_relative_to_it():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="api/n.md"))
    assert hooks.on_page_markdown("[a](../b.md) [c](../../d.py)", page) == (
        '[a](../b.md) <span title="d.py">c</span>'
    )
