"""Agents of four frameworks, unchanged, whole and streamed (`make soak-frameworks`)."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from extensions.agents.programs.messages import AgentTask, Run
from extensions.agents.programs.verifier import AgentPrograms
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.judging.isolation import Level
from tests.builders import rollout
from tests.extensions.agents.random_agent import in_loss_once
from tests.extensions.agents.served_sessions import sessions_at
from tests.inference_adapters.servers import serving, wait_ready
from tests.tool_model import make_tool_model

pytestmark = pytest.mark.long
HERE = Path(__file__).parent
PYTHON = HERE.parents[2] / ".venv-frameworks" / "bin" / "python"
NAMES = ["plain", "openai_agents", "pydantic_ai", "langgraph", "smolagents"]
EPISODES = 20
CONTEXT = 16_384  # smolagents' first prompt has thousands of characters


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("model")
    make_tool_model(path, ["hermes"])
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return str(path)


@pytest.fixture(scope="module")
def url(model):
    with serving("inference_adapters.transformers", "--model", model) as server:
        wait_ready(server.url)
        yield server.url


async def episodes(url: str, model: str, name: str, streams: bool):
    """Yields the session, the end and the right answer of each episode."""
    numbers = random.Random(1)
    programs = AgentPrograms(command=[str(PYTHON), str(HERE / "frameworks.py")], serve=True)
    try:
        await programs.start(Level.SEALED)
        async with sessions_at(url, model) as sessions:
            for number in range(EPISODES):
                terms = [numbers.randrange(100, 1000) for _ in range(3)]
                question = " + ".join(map(str, terms))
                session, key = sessions.begin(f"{name} {number}")
                task = json.dumps({"framework": name, "streams": streams, "question": question}).encode()
                asked = AgentTask(sessions.endpoint.url, key, task)
                judgement = await programs.judged(msgspec.msgpack.encode(asked), "")
                await sessions.endpoint.end([key])
                yield session, msgspec.json.decode(judgement.said, type=Run), str(sum(terms))
    finally:
        await programs.close()


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", NAMES)
def test_every_answer_is_one_conversation_of_sampled_tokens(url, model, name, streams):
    async def ran():
        return [episode async for episode in episodes(url, model, name, streams)]

    ran = asyncio.run(ran())
    counts = sum((session.counts for session, _, _ in ran), Counter())
    print(f"{name} {'streamed' if streams else 'whole'}: {dict(counts)}")
    assert counts["answers"] == counts["requests"] >= EPISODES and counts["unread"] == counts["refused"] == 0
    for session, _, _ in ran:
        in_loss_once(session)
    if name == "smolagents":  # its prompt is nothing that the model was taught
        return
    assert (counts["roots_first"], counts["roots_edited"], counts["roots_tools"]) == (EPISODES, 0, 0)
    for session, _, _ in ran:
        completions = session.trained(path_only=False)
        assert len(training_sequences(rollout(0, completions=completions), [1.0] * len(completions))) == 1
    right = sum(bool(run.result) and run.result.answer.strip() == value for _, run, value in ran)
    assert right > 0.6 * EPISODES
