"""reward.png: training reward by the newest weights that sampled a rollout, and held-out success."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipelinerl.report.run_totals import VersionMean


def draw_rewards(path: Path, training: list[VersionMean], heldout: list[tuple[int, float]]) -> None:
    """Draws the mean reward and the held-out success by weight version, and saves the picture at `path`."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    versions = [mean.version for mean in training]
    axes.plot(versions, [mean.reward for mean in training], color="tab:blue", label="reward (training)")
    axes.plot(versions, [mean.success for mean in training], color="tab:orange", label="success (training)")
    versions = [version for version, _ in heldout]
    success = [share for _, share in heldout]
    axes.plot(versions, success, "o", color="black", label="success (held out)")
    axes.set_xlabel("weight version (optimizer steps)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
