"""Draws reward.png: success and reward of training rollouts, and held-out success, by weight version.

A rollout counts for the newest version that sampled it. Versions that a resumption undid are left out.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pipelinerl.config import ResolvedRun, load_config
from pipelinerl.report.run_totals import RunTotals, VersionMean

SIZE = (9.0, 4.5)  # inches; with DOTS twice the width of a README in pixels
REWARD_SIZE = (9.0, 6.5)  # with a second panel
DOTS = 200  # per inch
SMOOTHED_OVER = 20  # a curve is a moving mean over 1/20 of its versions
MOST_NAMED = 3  # held-out sets in the title
TRAINING = "#1f77b4"
REWARD = "#d9822b"
HELD_OUT = "#111111"


class Caption(NamedTuple):
    title: str
    subtitle: str


def caption_of(run_dir: Path, totals: RunTotals) -> Caption:
    """Returns the title, with model and domain, and the subtitle, with the run."""
    undone = "; versions that were undone are left out" if totals.resumed else ""
    subtitle = f"run {run_dir.name}{undone}"
    if not (run_dir / "config.yaml").is_file():
        return Caption("Success by weight version", subtitle)
    config = load_config(run_dir)
    model = config.inference.model or config.model.hub or Path(str(config.model.path)).name
    return Caption(f"Reinforcement learning of {model} on {_domain(config, totals)}", subtitle)


def _domain(config: ResolvedRun, totals: RunTotals) -> str:
    """Returns the names of the held-out sets, or of the domain's class without an evaluation."""
    sets = [of.name for result in totals.evaluations[-1:] for of in result.sets]
    if len(sets) > MOST_NAMED:
        return f"{len(sets)} sets of problems"
    return ", ".join(sets) or config.domain.target.rpartition(".")[2]


def draw_rewards(
    path: Path, caption: Caption, training: Sequence[VersionMean], heldout: Sequence[tuple[int, float]]
) -> None:
    """Draws the curves and saves the picture at `path`. heldout: (version, success) of each evaluation.

    The reward has a second panel unless it equals the success.
    """
    has_reward = any(abs(mean.reward - mean.success) > 1e-9 for mean in training)
    figure = Figure(figsize=REWARD_SIZE if has_reward else SIZE, layout="constrained", facecolor="white")
    panels = figure.subplots(1 + has_reward, sharex=True, squeeze=False)[:, 0]
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.12)
    panels[0].set_title(caption.title, loc="left", fontsize=15, fontweight="bold", pad=26)
    panels[0].text(0, 1.03, caption.subtitle, transform=panels[0].transAxes, fontsize=11, color="dimgray")
    _draw_success(panels[0], training, heldout)
    if has_reward:
        _draw_reward(panels[1], training)
    panels[-1].set_xlabel("weight version (optimizer steps)", fontsize=12)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    figure.savefig(path, dpi=DOTS)


def _draw_success(axes: Axes, training: Sequence[VersionMean], heldout: Sequence[tuple[int, float]]) -> None:
    _draw_curve(axes, training, [mean.success for mean in training], TRAINING, "training rollouts")
    if heldout:
        label = "held-out problems"
        axes.plot(*zip(*heldout, strict=True), "o-", color=HELD_OUT, lw=1.2, ms=7, label=label, zorder=4)
        for version, success in {heldout[0], heldout[-1]}:
            _write_share(axes, version, success)
    axes.set_ylim(0.0, 1.0)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    _finish(axes, "success")


def _write_share(axes: Axes, version: int, success: float) -> None:
    """Writes a success above its mark, or below at the top of the panel."""
    offset = (0, -20 if success > 0.85 else 11)
    text = axes.annotate(f"{success:.0%}", (version, success), offset, textcoords="offset points", zorder=5)
    text.set(
        ha="center", fontsize=12, fontweight="bold", path_effects=[withStroke(linewidth=4, foreground="w")]
    )


def _draw_reward(axes: Axes, training: Sequence[VersionMean]) -> None:
    _draw_curve(axes, training, [mean.reward for mean in training], REWARD, "training rollouts")
    _finish(axes, "mean reward")


def _draw_curve(
    axes: Axes, training: Sequence[VersionMean], values: Sequence[float], color: str, label: str
) -> None:
    versions = [mean.version for mean in training]
    axes.plot(versions, values, color=color, lw=1.0, alpha=0.3)
    axes.plot(versions, moving_mean(values), color=color, lw=2.5, label=label)


def moving_mean(values: Sequence[float]) -> list[float]:
    """Returns the centred moving mean over 1 / SMOOTHED_OVER of the values, and over fewer at the ends."""
    reach = len(values) // SMOOTHED_OVER // 2
    return [fmean(values[max(0, at - reach) : at + reach + 1]) for at in range(len(values))]


def _finish(axes: Axes, label: str) -> None:
    axes.set_ylabel(label, fontsize=12)
    axes.tick_params(labelsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", fontsize=11, framealpha=0.9)
