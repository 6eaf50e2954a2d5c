"""The servers of a run are scraped with the token that its user has chosen."""

import os
import signal
from pathlib import Path

from contracts.records import ServerJoined, WeightsPublished
from contracts.support.token import TOKEN_VARIABLE
from tests.forked import Forked
from tests.inference_adapters.metrics import scraped, status_without_token, value
from tests.pipeline.runs import MINIATURE, finish, records, wait_for_record


def test_a_server_of_a_run_tells_the_version_that_was_published(tmp_path: Path):
    run = tmp_path / "run"
    overrides = [f"run_dir={run}", *MINIATURE, "max_steps=100000", "eval.every=null"]
    launcher = Forked("launch.py", *overrides, environment=os.environ | {TOKEN_VARIABLE: "of-the-user"})
    wait_for_record(run, "trainer_events", WeightsPublished, 2)
    (url,) = [event.url for event in records(run, "launcher_events") if isinstance(event, ServerJoined)]
    assert status_without_token(url) == 401
    samples = scraped(url, "of-the-user")
    launcher.send_signal(signal.SIGINT)
    assert finish(launcher)[0] == 130
    assert value(samples, "contract_weight_version") >= 1
    assert value(samples, "contract_weight_updates_total", state="live") >= 2
    assert value(samples, "contract_sampled_tokens_total") > 0
