"""A run on one machine, where Ray is installed or not: no process of it imports it."""

from pathlib import Path

import pytest

from tests.pipeline.runs import MINIATURE, finish, launch


@pytest.mark.long
def test_a_local_run_never_imports_ray(tmp_path: Path):
    trap = tmp_path / "trap"
    (trap / "ray").mkdir(parents=True)
    (trap / "ray" / "__init__.py").write_text("raise AssertionError('a local run imports ray')")
    run = tmp_path / "run"
    short = ("max_steps=1", "eval.every=null")
    launcher = launch(run, *MINIATURE, *short, environment={"PYTHONPATH": str(trap)}, directory=trap)
    status, err = finish(launcher)
    assert status == 0, err
