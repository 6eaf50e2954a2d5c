"""The timeline's canvas as a test sees it: its bars, its pixels, and where a time stands on it."""

import re
from typing import NamedTuple

from pipelinerl.paths import ROOT
from tests.extensions.viewer.browser.tabs import Tab, run_fragment

SCRIPT = ROOT / "extensions" / "viewer" / "static" / "colours.js"
COLOURS = re.findall("#[0-9a-f]{6}", re.search(r"VERSION_COLOURS = \[.*\]", SCRIPT.read_text())[0])
LABELS = 104  # pixels in front of the time
# For each of some rows of pixels: how many pixels have the same colour one after the other, and that colour.
PIXELS = """(rows) => {
    const { width, height } = document.getElementById("timeline");
    const context = document.getElementById("timeline").getContext("2d");
    const pixels = new DataView(context.getImageData(0, 0, width, height).data.buffer);
    return rows.map((y) => {
      const runs = [];
      for (let x = 0; x < width; x += 1) {
        const colour = pixels.getUint32(4 * (y * width + x)) >>> 8;
        if (runs.at(-1)?.[1] !== colour) {
          runs.push([0, colour]);
        }
        runs.at(-1)[0] += 1;
      }
      return runs;
    });
}"""


def colour_of(version: int) -> str:
    return COLOURS[version % len(COLOURS)]


class Bar(NamedTuple):
    """The bar of a request, in pixels."""

    r: str
    x: float
    width: float
    y: float
    height: float
    versions: list[int]

    @property
    def end(self) -> float:
        return self.x + self.width


class Timeline:
    """The timeline of a run in a tab, from `began` to `ended` in unix seconds."""

    def __init__(self, tab: Tab, run: str, began: float, ended: float):
        self.tab = tab
        self.began = began
        self.ended = ended
        tab.go(f"{run_fragment(run, 'timeline')}?began={began!r}&ended={ended!r}")
        assert tab.text(".note") == ""  # nothing is left out
        self.width = tab.page.evaluate("document.getElementById('timeline').clientWidth")
        self.scale = (self.width - LABELS) / (ended - began)  # pixels a second

    @property
    def bars(self) -> list[Bar]:
        found = self.tab.page.evaluate("document.getElementById('timeline').bars")
        return [Bar(**bar) for bar in found]

    def x_of(self, at: float) -> float:
        return LABELS + (at - self.began) * self.scale

    def colours(self, bars: list[Bar]) -> dict[float, list[str]]:
        """Returns the colours of all pixels along the middle of the bars' rows, by their `y`."""
        ys = sorted({bar.y for bar in bars})
        middle = bars[0].height / 2
        rows = self.tab.page.evaluate(PIXELS, [int(y + middle) for y in ys])
        return {
            y: [f"#{colour:06x}" for count, colour in row for _ in range(count)]
            for y, row in zip(ys, rows, strict=True)
        }

    def click(self, bar: Bar) -> None:
        box = self.tab.find("#timeline").bounding_box()
        x = min(max(bar.x + bar.width / 2, LABELS + 2), self.width - 2)
        self.tab.page.mouse.click(box["x"] + x, box["y"] + bar.y + bar.height / 2)
