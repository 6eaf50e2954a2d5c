"""A backend of one's own: a run's processes, and what reads the run, find it by the configuration."""

from contextlib import contextmanager

import pytest

from pipelinerl.config import ResolvedRun, Section, load_config, save_config
from pipelinerl.errors import PlanError
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.of_run import StreamsBackend, locate_streams, open_streams, recorded_streams
from tests.streams.records import event, there


class Elsewhere(StreamsBackend):
    class Options(Section):
        directory: str

    def open(self, on_wait=None):
        return FileStreams(f"{self.options.directory}/{self.run}")

    @contextmanager
    def recorded(self):
        yield self.open()

    def locate(self, config, address):
        self.run = self.run or f"run-at-{address}"


def chosen(tmp_path, *overrides: str):
    own = f"{{_target_: {__name__}.Elsewhere, directory: {tmp_path}/records}}"
    return compose_config(["~streams", f"+streams={own}", *overrides])


def test_it_is_found_by_the_launcher_by_processes_and_by_what_reads_the_run(tmp_path):
    config = chosen(tmp_path)
    located = locate_streams(config, tmp_path, "here")
    assert (located.environment, located.server) == ({}, None)
    save_config(ResolvedRun.of(config, streams=located.section), tmp_path / "config.yaml")
    open_streams(load_config(tmp_path), tmp_path).writer("events").append(event(0))
    assert (tmp_path / "records" / "run-at-here" / "events").is_dir()
    with recorded_streams(tmp_path) as streams:
        assert there(streams) == [0]
    resumed = compose_config([f"run_dir={tmp_path}", "resume=true"])
    assert resumed.streams == config.streams
    assert locate_streams(resumed, tmp_path, "there").section == located.section


def test_a_run_that_has_begun_keeps_its_streams(tmp_path):
    config = chosen(tmp_path)
    located = locate_streams(config, tmp_path, "here")
    save_config(ResolvedRun.of(config, streams=located.section), tmp_path / "config.yaml")
    with pytest.raises(PlanError, match="streams cannot change when a run is resumed"):
        compose_config([f"run_dir={tmp_path}", "resume=true", "streams=files"])


def test_without_a_configuration_streams_are_files(tmp_path):
    FileStreams(tmp_path / "streams").writer("events").append(event(0))
    with recorded_streams(tmp_path) as streams:
        assert there(streams) == [0]
