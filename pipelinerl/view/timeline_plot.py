"""Draws a timeline of requests. It knows no stream and no run."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib import rc_context
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from contracts.records import Completion
from pipelinerl.view.timeline import Timeline

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")  # of versions, in turn
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "timeline"}  # text stays text, and names repeat


def draw_timeline(path: Path, timeline: Timeline) -> None:
    """Saves the picture at `path`, in the format of its name."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    bars = [bar for row, requests in enumerate(timeline.rows) for bar in _bars(row, requests, timeline)]
    axes.add_collection(PolyCollection([b for b, _ in bars], facecolors=[c for _, c in bars], linewidths=0))
    for version, at in timeline.live.items():
        axes.axvline(at - timeline.began, color="black", linewidth=1)
        axes.annotate(
            f"v{version}",
            (at - timeline.began, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            color=colour(version),
            fontweight="bold",
        )
    axes.set_xlim(0, timeline.ended - timeline.began)
    axes.set_ylim(len(timeline.rows), 0)
    axes.set_xlabel("seconds; a line stands where a weight version went live")
    axes.set_ylabel("requests in flight")
    with rc_context(STYLE):
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


def colour(version: int) -> str:
    """Returns the colour of a weight version. Versions that follow each other have different ones."""
    return COLOURS[version % len(COLOURS)]


def _bars(row: int, requests: list[Completion], timeline: Timeline) -> Iterator[tuple[list, str]]:
    """Yields the corners and the colour of each span. Tokens are spread evenly over their request."""
    for request in requests:
        start = request.began - timeline.began
        token_s = (request.ended - request.began) / len(request.token_ids)
        for span in request.spans:
            left = start + span.start * token_s
            right = start + span.end * token_s
            yield (
                [(left, row + 0.1), (right, row + 0.1), (right, row + 0.9), (left, row + 0.9)],
                colour(span.version),
            )
