"""A hook of mkdocs: links from pages to files outside of docs/ lead to the repository, or become text."""

import posixpath
import re
from typing import Any
from urllib.parse import urlsplit

REPOSITORY = ""  # URL of the files, such as https://github.com/OWNER/NAME/blob/main; "" = links become text
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
CODE = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)  # a split keeps what it captures


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Returns the page with its links to files outside of docs/ replaced."""
    parts = CODE.split(markdown)
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")
    return "".join(part if CODE.match(part) else with_links(part, folder) for part in parts)


def with_links(text: str, folder: str) -> str:
    """Returns a text without code blocks, of a page in this folder, with its links replaced."""
    return LINK.sub(lambda link: replaced(link[0], link[1], link[2], folder), text)


def replaced(link: str, label: str, target: str, folder: str) -> str:
    """Returns a link as it is if it leads to a page or to another site. Its title is the path otherwise."""
    url = urlsplit(target)
    path = posixpath.normpath(posixpath.join(folder, url.path))
    if url.scheme or not url.path or path.startswith("docs/"):
        return link
    if not REPOSITORY:
        return f'<span title="{path}">{label}</span>'
    anchor = f"#{url.fragment}" if url.fragment else ""
    return f'[{label}]({REPOSITORY}/{path}{anchor} "{path}")'
