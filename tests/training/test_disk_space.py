"""Room on a disk is waited for before the trained model is written."""

from pathlib import Path

from pipelinerl.training import disk_space
from pipelinerl.training.disk_space import MARGIN, size_beside_weights, wait_for_space


def test_what_would_not_fit_is_waited_for_until_there_is_room(small_disk: Path, caplog):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(4 << 20))
    looks = []

    def make_room() -> None:
        looks.append(1)
        if len(looks) == 2:
            ballast.unlink()

    wait_for_space(small_disk, (7 << 20) - MARGIN, make_room)
    assert len(looks) == 2
    said = [record.message for record in caplog.records if record.name == disk_space.__name__]
    assert [line.rpartition(" ")[2] for line in said] == ["room", "again"]


def test_what_a_model_has_beside_its_weights_is_counted(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_bytes(bytes(1000))
    (tmp_path / "model.safetensors").write_bytes(bytes(5000))
    assert size_beside_weights(str(tmp_path)) == 1000
    assert size_beside_weights("no directory") == size_beside_weights(None) == 0


def test_what_fits_is_not_waited_for(tmp_path: Path):
    wait_for_space(tmp_path, 1 << 20, on_wait=lambda: 1 / 0)
