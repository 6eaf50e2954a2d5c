"""Runs that are damaged, deleted or begun anew: the viewer says so, and shows the others and the rest."""

import shutil
from pathlib import Path

import pytest

from extensions.viewer.__main__ import main
from tests.extensions.viewer.recorded_run import RecordedRun, member_of, small_run
from tests.extensions.viewer.viewers import viewing
from tests.pipeline.runs import wait_for


def overwrite(run: Path, stream: str, at: int) -> None:
    (segment,) = (run / "streams" / stream).glob("*.records")
    content = bytearray(segment.read_bytes())
    content[at : at + 30] = b"\xff" * 30
    segment.write_bytes(content)


DAMAGES = {
    "metrics": lambda run: (run / "metrics" / "trainer.jsonl").open("a").write('[1, 2]\n{"step": 3}\n7\n'),
    "spans": lambda run: (run / "spans" / "trainer-0.jsonl").open("a").write('[1, 2]\n{"name": 1}\n'),
    "summary": lambda run: (run / "summary.json").write_text("[1, 2]"),
    "no-config": lambda run: (run / "config.yaml").unlink(),
}


def test_damaged_files_are_left_out_or_named_and_hide_no_other_run(tmp_path):
    for damage, spoil in DAMAGES.items():
        spoil(small_run(tmp_path / "runs" / damage).run_dir)
    for name, content in (("no-yaml", "a: ["), ("no-mapping", "- 1\n- 2\n")):
        (small_run(tmp_path / "runs" / name).run_dir / "config.yaml").write_text(content)
    with viewing(tmp_path / "runs") as viewer:
        assert {row["name"] for row in viewer.get("runs")} == {*DAMAGES, "no-yaml", "no-mapping"}
        for damage in DAMAGES:
            assert viewer.get(f"runs/{damage}")["step"] == 4
            for page in ("charts", "timeline", "servers", "rollouts", "groups/2", "accounting", "files"):
                viewer.get(f"runs/{damage}/{page}")
        for name in ("no-yaml", "no-mapping"):
            assert "config.yaml is damaged" in viewer.get(f"runs/{name}", status=503)["error"]


@pytest.mark.parametrize("stream", ["rollouts", "trainer_events"])
def test_a_damaged_stream_is_named_and_no_report_is_made(tmp_path, capsys, stream):
    run = small_run(tmp_path / "run").run_dir
    overwrite(run, stream, at=2000 if stream == "rollouts" else 900)
    with viewing(run) as viewer:
        answer = viewer.get("runs/run")
        assert f"the stream {stream} cannot be read" in answer["problem"]
        assert viewer.get("runs/run/rollouts")["rows"]
    assert main([str(run), "--export", str(tmp_path / "r.html")]) == 1
    assert "cannot be read" in capsys.readouterr().err and not (tmp_path / "r.html").exists()


def test_records_that_retention_deletes_do_not_end_the_following(tmp_path):
    run = RecordedRun(tmp_path / "run", segment_bytes=3000)
    run.begin()
    for version in range(12):
        members = [member_of(version, member, version, float(member)) for member in range(2)]
        run.step(version, [members], trained=1)
    with viewing(run.run_dir) as viewer:
        assert viewer.get("runs/run/rollouts")["total"] == 24
        run._writers["rollouts"].trim(run.end_of("rollouts") - 2000)
        run.step(12, [[member_of(12, member, 12, float(member)) for member in range(2)]], trained=1)
        wait_for(lambda: viewer.get("runs/run/rollouts")["total"] == 26)
        assert viewer.get("runs/run")["problem"] is None
        first = viewer.get("runs/run/rollouts?sort=newest&version_to=0")["rows"][-1]["r"]
        assert "no longer there" in viewer.get(f"runs/run/rollouts/{first}", status=404)["error"]
        assert viewer.get("runs/run/timeline")["tracks"]
    run.close()
    assert main([str(run.run_dir), "--export", str(tmp_path / "r.html")]) == 0


def test_a_run_that_was_deleted_is_not_shown_and_another_one_in_its_place_is(tmp_path):
    run = small_run(tmp_path / "runs" / "run").run_dir
    with viewing(tmp_path / "runs") as viewer:
        assert viewer.get("runs/run")["step"] == 4
        shutil.rmtree(run)
        assert "no run run here" in viewer.get("runs/run", status=404)["error"]
        small_run(run, steps=2)
        assert viewer.get("runs/run")["step"] == 2
        assert viewer.get("runs/run/rollouts")["total"] == 16


@pytest.mark.parametrize(
    "in_the_way", [Path.touch, lambda view: view.symlink_to(view.parents[1] / "outside")]
)
def test_a_run_that_must_not_be_written_to_is_shown(tmp_path, in_the_way):
    run = small_run(tmp_path / "run").run_dir
    (tmp_path / "outside").mkdir()
    in_the_way(run / "view")
    with viewing(run) as viewer:
        assert viewer.get("runs/run/rollouts")["total"] == 32
    assert list((tmp_path / "outside").iterdir()) == []
