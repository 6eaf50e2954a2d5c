"""Writes a run to one HTML file that needs no server: the viewer's pages and the answers of its API.

Of the rollouts, the file has those of evenly spaced groups, at most MOST. Logs and the trace are left out.
"""

import hashlib
import html
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from contracts.support.files import write_atomically
from extensions.viewer.answers import charts, files, groups, overview, reader, rollouts, servers, timeline
from extensions.viewer.answers.overview import Answer
from extensions.viewer.index.filters import Filters
from extensions.viewer.json_text import encode_json
from extensions.viewer.runs.directory import Runs
from extensions.viewer.runs.opened import OpenRun
from pipelinerl.streams.run_directory import InvalidInputError

STATIC = Path(__file__).parent / "static"
MOST = 300  # rollouts
UPLOT = "vendor/uPlot.esm.js"
SHEETS = ("vendor/uPlot.min.css", "style.css")
UNQUOTED = "!'()*"  # characters that encodeURIComponent does not escape either
IMPORT = re.compile(r'^import (?:\{[^}]*\}|\w+) from "\./([^"]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class)\b)", re.MULTILINE)


def write_report(runs: Runs, out: Path) -> str:
    """Writes the file and returns a message about it. `runs` must hold a single run.

    Raises InvalidInputError if `out` is not a file in an existing directory, or the run cannot be read.
    """
    if out.is_dir() or not out.parent.is_dir():
        why = "is a directory" if out.is_dir() else "is in no directory that is there"
        raise InvalidInputError(f"--export {out} {why}: name a file")
    (name,) = runs.directories()
    run = runs.get(name)
    run.following.wait_until_read()
    if run.following.problem:
        raise InvalidInputError(run.following.problem)
    answers = dict(answers_of(run))
    page = page_of(answers, f"#/r/{quote(name)}")
    write_atomically(out, page)
    runs.close()
    shown = sum(path.count("/rollouts/") for path in answers)
    of_all = f"{shown} of {run.following.progress.rollouts:,} rollouts"
    return f"report in {out}: {len(page) / 1e6:.1f} MB, {of_all}"


def answers_of(run: OpenRun) -> Iterator[tuple[str, Answer]]:
    """Yields the path and the answer of each API request that the pages may make."""
    here = f"api/runs/{quote(run.name, safe=UNQUOTED)}"
    yield here, overview.overview(run) | {"is_live": False}
    yield f"{here}/charts", charts.charts(run)
    yield f"{here}/timeline", timeline.timeline(run, None, None)
    yield f"{here}/servers", servers.servers(run)
    yield f"{here}/accounting", groups.accounting(run)
    listed = files.files(run)
    shown = [file for file in listed["files"] if not file["id"].startswith("logs/")]
    yield f"{here}/files", listed | {"files": shown, "trace": None}
    for file in shown:
        yield f"{here}/files/{quote(file['id'], safe=UNQUOTED)}", files.file(run, file["id"])
    numbers = run.queries.spread_groups(MOST, run.reader("rollouts").first_offset())
    started = run.following.state.accounts.started
    shown_groups = [groups.group(run, number) for number in numbers if number in started]
    for group in _with_neighbours(shown_groups, "id"):
        yield f"{here}/groups/{group['id']}", group
        yield f"{here}/groups/{group['id']}/story", {"lines": None}
    members = [member for group in shown_groups for member in group["members"]]
    offsets = [int(member["r"].partition("/")[2]) for member in members]
    lines = [member | rollouts.lines_of(run, False, at) for member, at in zip(members, offsets, strict=True)]
    yield f"{here}/rollouts", rollouts.rollouts(run, Filters(), None) | {"rows": lines, "next": None}
    read = [reader.rollout(run, "train", offset) for offset in offsets]
    for rollout in _with_neighbours(read, "r"):
        yield f"{here}/rollouts/{rollout['r']}", rollout


def _with_neighbours(answers: list[Answer], name: str) -> Iterator[Answer]:
    names = [None, *(answer[name] for answer in answers), None]
    for before, answer, after in zip(names, answers, names[2:], strict=False):
        yield answer | {"previous": before, "next": after}


def page_of(answers: dict[str, Answer], begin: str) -> str:
    """Returns the HTML page. begin: URL fragment of the first view."""
    script = f"if (!location.hash) location.replace({msgspec.json.encode(begin).decode()});\n{script_of()}"
    sheet = "\n".join((STATIC / name).read_text() for name in SHEETS)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(sheet)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # Escaped, because "</script>" in a JSON string would end the element.
    recorded = encode_json(answers).decode().replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>PipelineRL</title>
<link rel="icon" href="data:,">
<style>{sheet}</style>
</head>
<body data-page="" data-ready="false">
<header id="head"></header>
<main id="main" tabindex="-1"></main>
<script type="application/json" id="recorded">{recorded}</script>
<script>{script}</script>
</body>
</html>
"""


def script_of() -> str:
    """Returns all JavaScript modules as one script, each after its imports."""
    return f"(() => {{\n{''.join(_modules('main.js', set()))}}})();\n"


def _modules(name: str, known: set[str]) -> Iterator[str]:
    known.add(name)
    text = (STATIC / name).read_text()
    if name == UPLOT:
        body = EXPORT.sub("", text).replace("export { uPlot as default };", "return uPlot;")
        yield f"const uPlot = (() => {{\n{body}\n}})();\n"
        return
    for imported in IMPORT.findall(text):
        if imported not in known:
            yield from _modules(imported, known)
    yield EXPORT.sub("", IMPORT.sub("", text))


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
