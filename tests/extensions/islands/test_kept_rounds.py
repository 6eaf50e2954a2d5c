"""Kept rounds: what others fetch is bit for bit what was kept, and what is broken on the way is not used."""

import contextlib
import shutil
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

from contracts.support.addresses import LOOPBACK
from extensions.islands.kept_rounds import KeptRounds
from extensions.islands.outer import Outer, OuterGradient
from extensions.islands.quantise import QUANTISERS
from extensions.islands.ring import Partition
from extensions.stored_weights.store.layout import stored_versions
from tests.limits import HANG_S
from tests.small_disk import fill, make_room

ELEMENTS = 700


@pytest.fixture
def stores(tmp_path):
    """Returns a function that opens a store by name, and closes all of them in the end."""
    opened = []

    def open_store(name: str, keep: int = 3) -> KeptRounds:
        opened.append(KeptRounds(tmp_path / name, keep, LOOPBACK))
        return opened[-1]

    yield open_store
    for store in opened:
        with contextlib.suppress(OSError):  # of one that a test has closed
            store.close()


def soon() -> float:
    """Returns a deadline for what is fetched."""
    return time.monotonic() + HANG_S


def anchored() -> Outer:
    return Outer(torch.arange(ELEMENTS, dtype=torch.float32), lr=0.7, momentum=0.9)


def drawn(outer: Outer) -> OuterGradient:
    """Returns a gradient that continues from the anchor."""
    values = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(outer.round))
    partition = Partition(ELEMENTS, 2, 256)
    messages = [QUANTISERS["blocks"].encode(values[begin:end]) for begin, end in partition.spans()]
    return OuterGradient(outer.round, outer.lineage, {"a": 4, "b": 3}, 1.75, "blocks", partition, messages)


def make_rounds(outer: Outer, store: KeptRounds, number: int) -> None:
    for _ in range(number):
        gradient = drawn(outer)
        store.wait_ended()
        outer.step(gradient)
        store.keep(gradient, outer.snapshot())
    store.wait_ended()


def are_same(one: Outer, other: Outer) -> bool:
    tensors = one.anchor.equal(other.anchor) and one.momentum.equal(other.momentum)
    return tensors and (one.round, one.lineage) == (other.round, other.lineage)


def files(directory: Path) -> list[Path]:
    return sorted(path for name in ("objects", "parts") for path in (directory / name).iterdir())


def test_the_newest_state_and_the_gradients_after_it_are_the_peer_s(stores):
    peer, other = anchored(), anchored()
    kept = stores("peer")
    make_rounds(peer, kept, 7)
    fetching = stores("other")
    other.restore(fetching.state(7, ["http://127.0.0.1:9/", kept.url], soon()))
    assert are_same(other, peer)
    assert fetching.state(6, [kept.url], soon()).round == 6
    assert fetching.state(9, [kept.url], soon()).round == 7
    assert fetching.state(5, [kept.url], soon()) is None  # the states of rounds 6 and 7 are kept


def test_the_state_of_a_checkpoint_is_kept_and_what_came_after_it_is_dropped(stores, tmp_path):
    outer, kept = anchored(), stores("peer")
    make_rounds(outer, kept, 2)
    loaded = anchored()
    loaded.restore(outer.snapshot())
    make_rounds(outer, kept, 3)
    kept.close()
    again = stores("peer")
    again.begin(loaded.snapshot())
    again.wait_ended()
    assert stored_versions(tmp_path / "peer", "rounds")[-1] == 1
    found = stores("other").state(2, [again.url], soon())
    assert found.anchor.equal(loaded.anchor) and found.lineage == loaded.lineage


def test_only_the_newest_gradients_and_two_states_are_kept(stores, tmp_path):
    kept = stores("peer", keep=3)
    make_rounds(anchored(), kept, 6)
    assert stored_versions(tmp_path / "peer", "rounds") == [3, 4, 5]
    assert len(files(tmp_path / "peer")) == 3 + 2
    assert stores("other").gradients(2, 6, [kept.url], soon()) is None
    assert len(stores("third").gradients(3, 6, [kept.url], soon())) == 3


def test_a_new_life_serves_what_was_kept_and_drops_the_rounds_of_another_run(stores, tmp_path):
    first = anchored()
    made = stores("peer", keep=9)
    make_rounds(first, made, 3)
    with pytest.raises(OSError, match="is used by another process"):
        stores("peer")
    made.close()
    again = stores("peer", keep=9)
    assert len(stores("other").gradients(0, 3, [again.url], soon())) == 3
    make_rounds(anchored(), again, 1)
    assert stored_versions(tmp_path / "peer", "rounds") == [0]
    assert len(files(tmp_path / "peer")) == 2


def test_a_file_with_wrong_bytes_is_had_from_another_peer(stores, tmp_path):
    one, two, behind = anchored(), anchored(), anchored()
    broken, whole = stores("broken"), stores("whole")
    make_rounds(one, broken, 2)
    make_rounds(two, whole, 2)
    for path in files(tmp_path / "broken"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    store = stores("behind")
    assert store.gradients(0, 2, [broken.url], soon()) is None
    behind.replay(store.gradients(0, 2, [broken.url, whole.url], soon()), 2)
    assert are_same(behind, one)


@pytest.mark.parametrize("text", [b"", b"{}", b'{"round": 0}', b"[" * 4000, b"\xff" * 5000])
def test_a_peer_that_serves_something_else_has_nothing(stores, tmp_path, text):
    kept = stores("peer")
    make_rounds(anchored(), kept, 1)
    for name in ("0", "latest"):
        (tmp_path / "peer" / "runs" / "rounds" / f"{name}.json").write_bytes(text)
    other = stores("other")
    assert other.gradients(0, 1, [kept.url], soon()) is None
    assert other.state(1, [kept.url], soon()) is None


@pytest.mark.engines
def test_a_full_disk_costs_the_round_and_no_more(stores, small_disk, caplog):
    kept = stores(small_disk / "peer")
    outer = anchored()
    fill(small_disk, leaving=1000)
    make_rounds(outer, kept, 1)
    assert "round 0 is not kept" in caplog.text and "No space left" in caplog.text
    make_room(small_disk)
    make_rounds(outer, kept, 1)
    assert stored_versions(small_disk / "peer", "rounds") == [1]


def test_a_transfer_that_is_open_does_not_hold_up_the_end(stores, tmp_path, monkeypatch):
    monkeypatch.setattr("extensions.islands.kept_rounds.CLOSE_S", HANG_S)
    kept = stores("peer")
    make_rounds(anchored(), kept, 1)
    large = tmp_path / "peer" / "objects" / ("0" * 64)
    large.write_bytes(bytes(64 * 2**20))  # more than the buffers of a connection hold
    url = urlsplit(kept.url)
    with socket.create_connection((url.hostname, url.port)) as reader:
        reader.sendall(f"GET /objects/{large.name} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        assert reader.recv(100).startswith(b"HTTP/1.1 200")
        kept.close()
    assert len(stores("other").gradients(0, 1, [stores("peer").url], soon())) == 1


def test_a_directory_that_is_removed_is_made_again(stores, tmp_path):
    kept = stores("peer")
    outer = anchored()
    make_rounds(outer, kept, 1)
    shutil.rmtree(tmp_path / "peer")
    make_rounds(outer, kept, 1)
    assert len(stores("other").gradients(1, 2, [kept.url], soon())) == 1
    with pytest.raises(OSError, match="is used by another process"):
        stores("peer")


def test_files_of_others_in_the_directory_stay(stores, tmp_path):
    kept = stores("peer")
    others = [
        tmp_path / "peer" / name for name in ("objects/thesis.txt", "parts/mine", "runs/rounds/notes.txt")
    ]
    for path in others:
        path.write_text("mine")
    make_rounds(anchored(), kept, 3)
    assert [path.read_text() for path in others] == ["mine"] * 3
