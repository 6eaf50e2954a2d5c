"""When a server that pulls weights counts as making progress, as behind, and as given up."""

import logging

import pytest

from contracts.channel import ChannelInfo, InitWeightChannelRequest, PublicKey
from contracts.inference import ContractInfo, EngineInfo, ProcessFigures, WeightsInfo, WeightUpdateStatus
from extensions.stored_weights.trainer.follower import Follower
from extensions.stored_weights.trainer.standstill import Standstill
from pipelinerl.clients.server_registry import Joining

INFO = EngineInfo(
    engine="fake", engine_version="1", model="m", backends=[], accepts_dtypes=[], kv_cache=[], capabilities=[]
)
FIGURES = ProcessFigures(resident_bytes=0, running=0, waiting=0)
REQUEST = InitWeightChannelRequest(
    run="r",
    epoch=3,
    kind="relay",
    sources=["http://a"],
    public_keys=[PublicKey(id="k", ed25519="0" * 64)],
    follow=True,
)


def answer(version: int, target: int | None = None, done: int = 0, epoch: int = 1) -> ContractInfo:
    channel = ChannelInfo(
        kind="relay", epoch=epoch, follow=True, newest_seen=target, target=target, bytes_done=done
    )
    weights = WeightsInfo(version=version, state="live", run="r")
    return ContractInfo(
        **INFO.model_dump(), run="r", group=None, weights=weights, process=FIGURES, channel=channel
    )


@pytest.fixture
def follower() -> Follower:
    """Returns a server that serves version 0 since second 0."""
    made = Follower(Joining("server-0", "http://s", 1), None)
    made.epoch = 1
    made.hear(answer(0), 0.0)
    return made


def test_a_server_is_behind_only_from_the_moment_at_which_another_one_is_ahead(follower):
    follower.compare("r", 0, 1000.0)  # a step that took long
    follower.compare("r", 1, 1001.0)
    assert follower.stands_still_s(1001.5) == 0.5
    follower.hear(answer(1), 1002.0)
    follower.compare("r", 1, 1003.0)
    assert follower.stands_still_s(5000.0) == 0.0


def test_a_server_that_begins_to_follow_has_its_time_again(follower):
    follower.follows = False
    follower.compare("r", 7, 1000.0)
    assert follower.stands_still_s(2000.0) == 0.0
    follower.join(REQUEST, answer(0, epoch=3), 2000.0)
    follower.compare("r", 7, 2001.0)
    assert follower.stands_still_s(2003.0) == 2.0


def test_a_server_that_has_joined_is_in_the_channel_at_once(follower):
    follower.join(REQUEST, answer(0, epoch=3), now=1.0)
    assert follower.is_joined("r")


def test_bytes_are_progress_and_each_newer_version_is_not(follower):
    follower.compare("r", 1, 1.0)
    follower.hear(answer(0, target=1, done=50), 10.0)
    follower.hear(answer(0, target=1, done=100), 20.0)
    assert follower.stands_still_s(21.0) == 1.0
    for version in range(2, 9):  # each is fetched, and none can be loaded
        follower.hear(answer(0, target=version), 10.0 * version + 5)
        follower.hear(answer(0, target=version, done=100), 10.0 * version + 9)
    assert follower.stands_still_s(100.0) == 80.0
    follower.hear(answer(8), 101.0)
    follower.hear(answer(8, target=9, done=10), 102.0)
    assert follower.moved_at == 102.0


@pytest.mark.parametrize(("state", "given_up"), [("receiving", False), ("failed", False), ("skipped", True)])
def test_a_server_repeats_what_failed(follower, state, given_up):
    follower.status = WeightUpdateStatus(run="r", epoch=1, version=0, state=state)
    assert follower.has_given_up == given_up


def test_a_standstill_is_said_once(caplog):
    caplog.set_level(logging.WARNING)
    standstill = Standstill(10.0)
    for now, served, published in [(0, 0, 0), (100, 0, 1), (109, 0, 2), (111, 0, 3), (150, 0, 9)]:
        assert standstill.lasts(served, published, now) == (now > 110)
    (record,) = caplog.records
    assert (
        record.getMessage() == "version 3 is published, and no server has served a newer one than 0 for 10 s"
    )
    for now, served, published in [(151, 5, 9), (160, 5, 9), (162, 5, 9)]:
        standstill.lasts(served, published, now)
    assert len(caplog.records) == 2
