"""Room on a disk is waited for before the trained model is written."""

from pathlib import Path

from pipelinerl.training.room import MARGIN, wait_for_room


def test_what_would_not_fit_is_waited_for_until_there_is_room(small_disk: Path, caplog):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(4 << 20))
    looks = []

    def make_room() -> None:
        looks.append(1)
        if len(looks) == 2:
            ballast.unlink()

    wait_for_room(small_disk, (7 << 20) - MARGIN, make_room)
    assert len(looks) == 2
    assert [record.message.rpartition(" ")[2] for record in caplog.records] == ["room", "again"]


def test_what_fits_is_not_waited_for(small_disk: Path):
    wait_for_room(small_disk, 1 << 20, on_wait=lambda: 1 / 0)
