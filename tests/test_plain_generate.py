"""The command of docs/demo.md that measures a checkpoint again, without the pipeline."""

import asyncio

from benchmarks.plain_generate import success
from contracts.conformance.tiny_model import make_tiny_model
from pipelinerl.launcher.composing.compose import compose_config


def test_a_domain_whose_answers_are_judged_is_measured(tmp_path):
    config = compose_config(["sampling.max_tokens=4"])
    rate = asyncio.run(success(config, make_tiny_model(tmp_path), problems=2))
    assert 0 <= rate <= 1
