"""Draws a timeline of requests. It knows no stream and no run."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from contracts.records import Completion, WeightsPublished
from extensions.viewer.timeline import Timeline

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")  # of versions, in turn
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "timeline"}  # text stays text, and names repeat


def draw_timeline(path: Path, timeline: Timeline, rows: int) -> None:
    """Saves a picture at `path`, of at most `rows` rows, which are taken evenly from all servers."""
    every = max(len(timeline.rows) // rows, 1)
    shown = timeline.rows[::every][:rows]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for published in timeline.published:
        _draw_publication(axes, published, timeline.began)
    bars = [bar for row, requests in enumerate(shown) for bar in _bars(row, requests, timeline.began)]
    corners = [corners for corners, _ in bars]
    axes.add_collection(PolyCollection(corners, facecolors=[color for _, color in bars], linewidths=0))
    axes.set_xlim(0, timeline.ended - timeline.began)
    axes.set_ylim(len(shown), 0)
    axes.set_yticks([])
    axes.set_xlabel("seconds")
    axes.set_ylabel(f"{len(shown)} of {len(timeline.rows)} requests in flight")
    axes.spines[["top", "left", "right"]].set_visible(False)
    with rc_context(STYLE):
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_publication(axes: Axes, published: WeightsPublished, began: float) -> None:
    at = published.at - began
    color = colour(published.version)
    axes.axvspan(at - published.seconds, at, color="#d0d7de", linewidth=0, zorder=0)
    axes.axvline(at, color="#1f2328", linewidth=1, zorder=3)
    label = f"v{published.version}"
    above = ("data", "axes fraction")
    axes.annotate(label, (at, 1.02), xycoords=above, ha="center", color=color, fontweight="bold")


def colour(version: int) -> str:
    """Returns the colour of a weight version. Versions that follow each other have different ones."""
    return COLOURS[version % len(COLOURS)]


def _bars(row: int, requests: list[Completion], began: float) -> Iterator[tuple[list, str]]:
    """Yields the corners and the colour of each span. Tokens are spread evenly over their request."""
    for request in requests:
        start = request.began - began
        tokens = max(len(request.token_ids), 1)  # one that was aborted may have none
        token_s = (request.ended - request.began) / tokens
        for span in request.spans:
            left = start + span.start * token_s
            right = start + span.end * token_s
            corners = [(left, row + 0.1), (right, row + 0.1), (right, row + 0.9), (left, row + 0.9)]
            yield corners, colour(span.version)
