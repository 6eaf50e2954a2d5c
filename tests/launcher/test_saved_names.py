"""Runs that were saved with earlier names of classes and keys: they resume, and are read."""

import pytest
import yaml

from pipelinerl.components import build_observers
from pipelinerl.config import ResolvedRun, load_config, save_config
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.model_source import find_model
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.launcher.executors.base import check_executor
from pipelinerl.paths import ROOT

EARLIER = {
    "executor": {"backend": "ray", "forward_env": ["MINE"]},
    "trackers": ["wandb"],
    "tensorboard": True,
    "view": True,
}


def saved(folder, *settings: str, **keys) -> None:
    """Writes the configuration of a run, with these keys in place of today's."""
    config = compose_config([*settings]).model_dump(by_alias=True, mode="json")
    del config["observers"]
    config["trainer"]["_target_"] = "trainer_adapters.diloco.DiLoCoTrainer"
    (folder / "config.yaml").write_text(yaml.safe_dump(config | keys))


def test_a_run_of_islands_on_ray_with_observers_resumes(tmp_path):
    streams = {"backend": "redis", "url": None, "keep_bytes": 1 << 30, "run": "of-islands"}
    saved(tmp_path, "trainer=diloco", "streams=redis", streams=streams, **EARLIER)
    resumed = compose_config([f"run_dir={tmp_path}", "resume=true", "executor=ray", "streams=redis"])
    for config in (resumed, load_config(tmp_path)):
        assert config.trainer.target == "extensions.islands.diloco.DiLoCoTrainer"
        assert config.executor.forward_env == ["MINE"]
        assert config.streams.target == "extensions.redis_streams.backend.Redis"
        check_executor(config)
        names = [observer.name for observer in build_observers(config)]
        assert names == ["tracker-wandb", "tracker-tensorboard", "viewer"]


def test_a_run_of_one_machine_without_observers_resumes_with_some(tmp_path):
    saved(tmp_path, "trainer=diloco", executor={"backend": "local"}, trackers=[], view=False)
    resuming = [f"run_dir={tmp_path}", "resume=true"]
    assert compose_config(resuming).observers == {}
    check_executor(compose_config(resuming))
    observed = compose_config([*resuming, "observers=[viewer,wandb]"])
    assert [*observed.observers] == ["viewer", "wandb"]
    assert compose_config([*resuming, "+observers.x._target_=mine.X"]).observers["x"].target == "mine.X"


def test_a_run_of_a_demo_model_finds_it_where_it_is_now(tmp_path):
    model = {"path": f"{ROOT}/pipelinerl/demo_model/checkpoints/sums", "hub": None}
    model |= {"shape": None, "demo": "sums"}
    saved(tmp_path, model=model)
    resuming = [f"run_dir={tmp_path}", "resume=true"]
    assert find_model(compose_config([*resuming, "model=sums"])) == find_model(compose_config([]))
    assert load_config(tmp_path).model.made_by == compose_config([]).model.made_by
    with pytest.raises(PlanError, match="model cannot change when a run is resumed"):
        compose_config([*resuming, "model=guessing"])


def test_what_the_launcher_found_is_the_run_s_and_what_the_user_wrote_is_resumed(tmp_path):
    written = compose_config(["streams=redis", "model.path=org/name"])
    model = written.model.model_dump(by_alias=True) | {"path": "/cache/1", "hub": "org/name"}
    streams = written.streams.model_dump(by_alias=True) | {"run": "run-1"}
    save_config(ResolvedRun.of(written, model=model, streams=streams), tmp_path / "config.yaml")
    config = load_config(tmp_path)
    assert (config.model.path, config.model.hub, config.streams.run) == ("/cache/1", "org/name", "run-1")
    resumed = compose_config([f"run_dir={tmp_path}", "resume=true", "model.path=org/name", "streams=redis"])
    assert (resumed.model, resumed.streams) == (written.model, written.streams)
