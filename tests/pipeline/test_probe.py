"""The probe of real servers: what it sees, and that late answers neither count nor hold training up."""

import contextlib
from collections.abc import Iterator

import msgspec

from contracts.records import WeightsPublished
from pipelinerl.training.probe import FIRST, Probe
from pipelinerl.training.publishing.base import publish
from pipelinerl.training.ranks import Ranks
from tests.clock import Clock
from tests.inference_adapters.servers import serving
from tests.limits import HANG_S
from tests.pipeline.test_first_servers import hanging
from tests.pipeline.test_weight_publisher import change, config, publisher
from tests.scripted_domain import ScriptedDomain

PROMPTS = 4
UNSEEN = {"probe_unanswered": PROMPTS}  # of one server


@contextlib.contextmanager
def probing(*settings: str) -> Iterator[Probe]:
    probe = Probe(config(*settings), ScriptedDomain(seed=0), Ranks(0, 1, 5), None, pulled=False)
    try:
        yield probe
    finally:
        probe.close()


def live_at(url: str, version: int = 0) -> WeightsPublished:
    return WeightsPublished(
        run="", version=version, servers=[url], joinings=[1], seconds=0.0, bytes=0, paused_s=0.0
    )


def probe_all_first(probe: Probe, worker, published: WeightsPublished) -> None:
    """Makes the probes that are always waited for."""
    for _ in range(FIRST):
        probe.begin(0, published)
        probe.score(worker, 0)


def test_it_sees_weights_that_are_not_the_trainers(worker):
    with serving("inference_adapters.scripted") as server, probing() as probe:
        sender = publisher(worker, server.url)
        published = publish(worker, Ranks(0, 1, 5), sender, 0)
        probe.begin(0, published)
        measured = probe.score(worker, 0)
        assert measured["logprob_gap_max_abs"] < 1e-5 and measured["probe_unanswered"] == 0
        change(worker)
        probe.begin(0, published)
        assert probe.score(worker, 0)["logprob_gap_mean_abs"] > 1e-3
        sender.close()


def test_tokens_of_another_version_do_not_count(worker):
    with serving("inference_adapters.scripted") as server, probing() as probe:
        sender = publisher(worker, server.url)
        publish(worker, Ranks(0, 1, 5), sender, 1)
        probe.begin(0, live_at(server.url))
        assert probe.score(worker, 0) == UNSEEN
        probe.begin(1, live_at(server.url, 1))
        assert probe.score(worker, 1)["probe_unanswered"] == 0
        sender.close()


def test_late_answers_are_left_out_and_those_in_time_count(worker):
    with serving("inference_adapters.scripted") as server, hanging() as silent:
        sender = publisher(worker, server.url)
        published = publish(worker, Ranks(0, 1, 5), sender, 0)
        with probing(f"probe.timeout_s={HANG_S}", "probe.every=1") as probe:
            probe_all_first(probe, worker, published)
            probe._schedule.end(began=0.0, now=1e6)  # as if those had taken long
            for _ in range(2):  # one that was waited for would not be asked again at once
                probe.begin(0, live_at(silent))
                assert probe.score(worker, 0) == UNSEEN
            probe.begin(0, published)
            probe._requests.wait()
            assert probe.score(worker, 0)["logprob_gap_max_abs"] < 1e-5
        sender.close()


def test_a_server_that_completes_nothing_is_not_asked_again_at_once(worker, monkeypatch):
    monkeypatch.setattr("pipelinerl.training.probe_requests.time", clock := Clock())
    with hanging() as silent, probing("probe.timeout_s=0.5") as probe:
        probe.begin(0, live_at(silent))
        clock.now += 0.5
        assert probe.score(worker, 0) == UNSEEN
        probe.begin(1, live_at(silent))
        assert probe.score(worker, 1) == {"probe_unanswered": 0}


def test_a_probe_goes_on_while_the_same_weights_are_published_anew(worker):
    with hanging() as silent, probing("probe.every=10", "probe.timeout_s=0.1") as probe:
        probe_all_first(probe, worker, live_at(silent))
        joined = msgspec.structs.replace(live_at(silent, 13), joinings=[2])
        for _ in range(2):
            probe.begin(13, joined)
            assert probe.is_under_way
        assert "probe_unanswered" in probe.score(worker, 13)
        probe.begin(14, joined)
        assert not probe.is_under_way
