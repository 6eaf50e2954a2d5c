"""What the processes of a run on one machine import: none Ray, and the launcher no torch."""

from pathlib import Path

from tests.pipeline.runs import MINIATURE, finish, launch, wait_for

OF_THE_CHECKS = ("libtorch", "tokenizers")  # compiled libraries, of which the process has maps


def test_no_process_imports_ray_and_the_launcher_holds_nothing_of_its_checks(tmp_path: Path):
    trap = tmp_path / "trap"
    (trap / "ray").mkdir(parents=True)
    (trap / "ray" / "__init__.py").write_text("raise AssertionError('a local run imports ray')")
    run = tmp_path / "run"
    short = ("max_steps=1", "eval.every=null")
    launcher = launch(run, *MINIATURE, *short, environment={"PYTHONPATH": str(trap)}, directory=trap)
    wait_for(lambda: (run / "metrics" / "trainer.jsonl").exists() or launcher.poll() is not None)
    loaded = Path(f"/proc/{launcher.pid}/maps").read_text()
    status, err = finish(launcher)
    assert status == 0, err
    assert "python" in loaded
    assert [library for library in OF_THE_CHECKS if library in loaded] == []
