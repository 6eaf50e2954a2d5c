"""reward.png: its title, its panels, and that undone versions are not in it."""

import matplotlib.image
import numpy as np
import pytest

from contracts.records import Evaluated, Resumed, SetResult
from pipelinerl.config import save_config
from pipelinerl.launcher.compose import compose_config
from pipelinerl.report.reward_plot import Caption, caption_of, draw_rewards, moving_mean
from pipelinerl.report.run_totals import RunTotals, VersionMean, read_totals
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


def evaluated(*names: str) -> Evaluated:
    sets = [SetResult(name=name, problems=1, attempts=1, success=0.5) for name in names]
    return Evaluated(version=1, problems=2, success=0.5, first_version=1, last_version=1, sets=sets)


def test_the_title_names_the_model_the_domain_and_the_run(tmp_path):
    run_dir = tmp_path / "first-try"
    run_dir.mkdir()
    save_config(compose_config(["model.path=org/small-model"]), run_dir / "config.yaml")
    totals = RunTotals()
    assert caption_of(run_dir, totals) == Caption(
        "Reinforcement learning of small-model on ReasoningGym", "run first-try"
    )
    totals.evaluations.append(evaluated("easy", "hard"))
    totals.resumed = 1
    caption = caption_of(run_dir, totals)
    assert caption.title == "Reinforcement learning of small-model on easy, hard"
    assert "undone" in caption.subtitle


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


def test_a_curve_is_smoothed_over_its_neighbours_and_keeps_its_ends():
    assert moving_mean([0.0, 1.0]) == [0.0, 1.0]
    assert moving_mean([float(at) for at in range(40)])[20] == pytest.approx(20.0)
    assert moving_mean([0.0] * 20 + [3.0] + [0.0] * 19)[19:22] == pytest.approx([1.0, 1.0, 1.0])
