"""The calculator in the call formats of several model families, with a real model on a real server."""

from collections.abc import Iterator

import pytest

from contracts.records import Rollout
from extensions.renderers.conversations import RendererConversations
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.conversations.template import TemplateConversations
from tests.engines.servers import engine_server
from tests.engines.tool_rollouts import ROLLOUTS, roll_out
from tests.tool_model import FORMATS, make_tool_model, tool_tokenizer

pytestmark = [pytest.mark.engines, pytest.mark.long]

TOKEN = "a-token"
SURE = 0.3  # at temperature 1 a sample of so small a model may slip


class ReadsAnotherFormat(RendererConversations):
    """Renders by the model's own template, whose format of calls its parser does not know."""

    def render(self, conversation) -> list[int]:
        return self._template.render(conversation)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return make_tool_model(tmp_path_factory.mktemp("model"), list(FORMATS), steps=1000)


@pytest.fixture(scope="module")
def server(model) -> Iterator[str]:
    with engine_server("transformers", model, token=TOKEN) as server:
        yield server.url


def rollouts_in(server: str, model: str, name: str, kind: type, renderer: str) -> list[Rollout]:
    own = TemplateConversations(model, tool_tokenizer(name))
    return roll_out(server, model, TOKEN, temperature=SURE, conversations=kind(renderer, own))


@pytest.mark.parametrize("name", ["qwen3.5", "glm-4.5"])
def test_calls_are_executed_and_answered_in_one_sequence(server, model, name):
    rollouts = rollouts_in(server, model, name, RendererConversations, name)
    assert min(rollout.metrics["tool_calls"] for rollout in rollouts) >= 1
    assert sum(rollout.success for rollout in rollouts) > ROLLOUTS / 2
    for rollout in rollouts:
        (sequence,) = training_sequences(rollout, [1.0] * len(rollout.completions))
        assert sequence.loss_mask.sum() == rollout.sampled_tokens


def test_a_broken_format_executes_none_and_is_counted(server, model):
    rollouts = rollouts_in(server, model, "broken", ReadsAnotherFormat, "qwen3.5")
    assert {rollout.metrics["tool_calls"] for rollout in rollouts} == {0.0}
    assert min(rollout.metrics["malformed_calls"] for rollout in rollouts) >= 1
