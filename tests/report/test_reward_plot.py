"""reward.png: its panels, and that undone versions are not in it."""

import matplotlib.image
import numpy as np
import pytest

from contracts.records import Resumed
from pipelinerl.report.reward_plot import Caption, draw_rewards
from pipelinerl.report.run_totals import VersionMean, read_totals
from pipelinerl.streams.events import FRESH_RUN
from pipelinerl.streams.files import FileStreams
from tests.builders import completion, rollout

CAPTION = Caption("what was trained", "which run")


def sampled_by(version: int, reward: float):
    return rollout(
        0, 0, reward, completions=[completion([1], [2], version=version)], metrics={"success": reward}
    )


def test_versions_that_were_undone_are_left_out_of_the_means(tmp_path):
    streams = FileStreams(tmp_path / "streams")
    rollouts = streams.writer("rollouts")
    rollouts.append(sampled_by(1, 0.0))
    rollouts.append(sampled_by(2, 0.0))
    rollouts.append(sampled_by(3, 0.0))
    values = {name: getattr(FRESH_RUN, name) for name in FRESH_RUN.__struct_fields__}
    ends = {"rollouts": rollouts.end}
    streams.writer("launcher_events").append(Resumed(**values | {"version": 1, "ends": ends}))
    rollouts.append(sampled_by(2, 1.0))
    totals = read_totals(tmp_path, streams)
    assert totals.rollouts.version_means() == [VersionMean(1, 0.0, 0.0), VersionMean(2, 1.0, 1.0)]
    assert totals.rollouts.tokens == 4  # they were sampled all the same


@pytest.mark.parametrize(
    ("training", "heldout", "height"),
    [
        ([VersionMean(v, v / 9, v / 9) for v in range(9)], [(0, 0.0), (8, 1.0)], 900),
        ([VersionMean(v, -float(v), v / 9) for v in range(9)], [(0, 0.5)], 1300),  # the reward's own panel
        ([], [(0, 0.5)], 900),
        ([VersionMean(3, 1.0, 1.0)], [], 900),
    ],
)
def test_the_picture_is_twice_900_pixels_wide_on_solid_white(tmp_path, training, heldout, height):
    draw_rewards(tmp_path / "reward.png", CAPTION, training, heldout)
    pixels = matplotlib.image.imread(tmp_path / "reward.png")
    assert pixels.shape[:2] == (height, 1800)
    assert np.all(pixels[0] == 1.0) and np.all(pixels[..., 3] == 1.0)
    assert (pixels[..., :3].min(axis=2) < 0.5).any()
