"""What the launcher's process holds while a run goes on: nothing of what its checks import."""

import signal
from pathlib import Path

from tests.pipeline.runs import MINIATURE, finish, launch, wait_for

LIBRARIES = ("libtorch", "matplotlib", "tokenizers")


def test_the_launcher_of_a_run_has_loaded_no_torch(tmp_path: Path):
    run = tmp_path / "run"
    launcher = launch(run, *MINIATURE, "max_steps=100000", "eval.every=null")
    wait_for(lambda: (run / "metrics" / "trainer.jsonl").exists() or launcher.poll() is not None)
    loaded = Path(f"/proc/{launcher.pid}/maps").read_text()
    launcher.send_signal(signal.SIGINT)
    finish(launcher)
    assert "python" in loaded
    assert [library for library in LIBRARIES if library in loaded] == []
