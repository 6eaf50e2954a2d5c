"""Takes the pictures of the viewer's pages that the documents show, of a run in files that has ended.

    python -m tests.extensions.viewer.browser.screenshots runs/20261126-090521 docs/images run timeline group

Without names of pages it takes all of them.
"""

import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from playwright.sync_api import sync_playwright

from contracts.records import MicroBatchRow, Record, Rollout, WeightsPublished
from pipelinerl.streams.of_run import recorded_streams
from tests.extensions.viewer.browser.tabs import Tab, new_browser, new_context, run_fragment
from tests.extensions.viewer.browser.timelines import Timeline
from tests.extensions.viewer.viewers import viewing

PAGES = ("run", "timeline", "group", "reader")
REQUESTS = 10  # that follow each other in the picture of the timeline


def take(tab: Tab, run_dir: Path, folder: Path, pages: Sequence[str] = PAGES) -> list[Path]:
    """Takes the pictures of these pages in a tab that has the run's viewer open."""
    rollouts = rollouts_of(run_dir)
    trained = trained_in(run_dir)
    across = {name: made for name, made in rollouts.items() if len(made.versions) > 1}
    shows = {
        "run": lambda: tab.go(run_fragment(run_dir.name)),
        "timeline": lambda: show_update(tab, run_dir, across),
        "group": lambda: tab.go(run_fragment(run_dir.name, "groups", telling_group(rollouts, trained))),
        "reader": lambda: show_rollout(tab, run_dir.name, across, trained),
    }
    pictures = []
    for page in pages:
        shows[page]()
        tab.page.wait_for_timeout(300)  # until charts have their width
        pictures.append(folder / f"viewer-{page}.png")
        tab.page.screenshot(path=pictures[-1])
    return pictures


def records_at(run_dir: Path, stream: str) -> Iterator[tuple[int, Record]]:
    """Yields each record of a stream with the offset at which it begins."""
    with recorded_streams(run_dir) as streams:
        reader = streams.reader(stream)
        offset = reader.first_offset()
        for entry in reader.read(timeout_s=0):
            yield offset, entry.record
            offset = entry.next_offset


def rollouts_of(run_dir: Path) -> dict[str, Rollout]:
    """Returns the training rollouts of a run in files, by the names that pages have for them."""
    return {f"train/{offset}": record for offset, record in records_at(run_dir, "rollouts")}


def trained_in(run_dir: Path) -> set[str]:
    """Returns the rollouts that were trained on, by their identifiers."""
    rows = [record for _, record in records_at(run_dir, "rows") if isinstance(record, MicroBatchRow)]
    return {one.rollout_id for row in rows for sequences in row.micro_batches for one in sequences}


def show_update(tab: Tab, run_dir: Path, across: dict[str, Rollout]) -> None:
    """Shows the timeline around the update that most requests went across."""
    events = [record for _, record in records_at(run_dir, "trainer_events")]
    published = {event.version: event for event in events if isinstance(event, WeightsPublished)}
    update = published[statistics.mode(record.versions[-1] for record in across.values())]
    request_s = statistics.median(record.finished_at - record.started_at for record in across.values())
    began = update.at - REQUESTS / 2 * request_s
    timeline = Timeline(tab, run_dir.name, began, began + REQUESTS * request_s)
    bars = [bar for bar in timeline.bars if bar.versions == [update.version - 1, update.version]]
    bar = bars[len(bars) // 2]
    timeline.point_at(bar.x + bar.width / 2, bar.y + bar.height / 2)


def telling_group(rollouts: dict[str, Rollout], trained: set[str]) -> int:
    """Returns the trained group with the most answers across an update, of those with many rewards."""
    groups: dict[int, list[Rollout]] = {}
    for name, record in rollouts.items():
        if name.startswith("train") and record.rollout_id in trained:
            groups.setdefault(record.group_id, []).append(record)

    def tells(group: int) -> tuple[int, int]:
        members = groups[group]
        across = sum(len(record.versions) > 1 for record in members)
        return across, len({record.reward for record in members})

    return max(groups, key=tells)


def show_rollout(tab: Tab, run: str, across: dict[str, Rollout], trained: set[str]) -> None:
    """Shows a trained rollout with as many tokens as can be on both sides of an update."""
    chosen = {name: record for name, record in across.items() if record.rollout_id in trained}

    def tells(name: str) -> tuple[int, float]:
        spans = [span for made in chosen[name].completions for span in made.spans]
        return min(span.end - span.start for span in spans), chosen[name].reward

    name = max(chosen, key=tells)
    tab.go(run_fragment(run, "rollouts", *name.split("/")))
    tab.find(".token").last.hover()


def main() -> None:
    run_dir = Path(sys.argv[1]).resolve()
    folder = Path(sys.argv[2])
    with sync_playwright() as playwright, viewing(run_dir) as viewer:
        tab = Tab(new_context(new_browser(playwright)))
        tab.open(viewer.url)
        for path in take(tab, run_dir, folder, sys.argv[3:] or PAGES):
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
        assert tab.offences == []


if __name__ == "__main__":
    main()
