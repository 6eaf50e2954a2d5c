"""Random sessions against a server whose weights are updated meanwhile (`make soak-agents`: a thousand)."""

import asyncio
import os
from collections import Counter

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from tests.extensions.agents.random_agent import tried
from tests.inference_adapters.servers import serving, wait_ready

SESSIONS = int(os.environ.get("SOAK_SESSIONS", 10))
MANY = 100


@pytest.mark.parametrize("renders", [False, True], ids=["sampled", "rendered"])
def test_every_token_that_was_read_is_in_the_loss_once_as_it_was_sampled(tmp_path, renders):
    model = make_tiny_model(tmp_path)
    with serving("inference_adapters.transformers", "--model", model) as server:
        wait_ready(server.url)
        ran = asyncio.run(tried(server.url, model, SESSIONS, renders))
    counts = sum((session.counts for session, _ in ran), Counter())
    assert min(counts[f"roots_{kind}"] for kind in ("first", "edited", "repeated")) > 0
    assert counts["continued"] > 3 * SESSIONS and counts["called_off"] > 0
    spans = [each.spans for session, _ in ran for each in session.trained(path_only=False)]
    # Whether an update falls into an answer is chance; of many sessions, some have such answers.
    assert SESSIONS < MANY or any(len(versions) > 1 for versions in spans)
