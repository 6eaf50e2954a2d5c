"""The calculator with a real model on a real server: calls are sampled, results come back, and all turns are
one training sequence of exactly the tokens that were sampled and shown."""

import asyncio

import numpy as np

from contracts.records import Rollout
from contracts.tool_calls import parse_tool_calls
from extensions.demo.domains.calculator import result_of
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.clients.completions import Asked, Sampling, complete
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.llm_client import LLMClient
from pipelinerl.clients.partial_completions import SegmentPolicy
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.config import RolloutConfig
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.domains.base import Answer
from pipelinerl.rollouts.runner import RolloutRunner, RolloutSpec
from tests.limits import HANG_S
from tests.tool_model import DOMAIN, RESULT, RESULTED, tool_tokenizer

TOKENIZER = tool_tokenizer()
ROLLOUTS = 16


def calls_and_results_are_one_sequence(url: str, model: str, token: str) -> None:
    """Asserts that what was sampled and shown is trained, token for token."""
    rollouts = with_a_call(roll_out(url, model, token))
    assert sum(rollout.success for rollout in rollouts) > ROLLOUTS / 2
    for rollout in rollouts:
        _is_one_conversation(rollout)


def calls_that_are_cut_short_say_so(url: str, model: str, token: str) -> None:
    """Asserts that a call without its end-of-sequence is read, and ends with `length`."""
    whole, cut = asyncio.run(cut_by_one(url, model, token))
    assert (whole.completion.finish_reason, cut.completion.finish_reason) == ("stop", "length")
    assert [call.function for call in cut.tool_calls] == [call.function for call in whole.tool_calls] != []


def calls_in_segments_are_read_as_a_whole(url: str, model: str, token: str) -> None:
    """Asserts that a call that is sampled in several requests is one call."""
    in_segments = {
        "segments": SegmentPolicy(segment_tokens=3),
        "decode": lambda ids: TOKENIZER.decode(ids, skip_special_tokens=True),
    }
    rollouts = with_a_call(roll_out(url, model, token, **in_segments))
    for rollout in rollouts:
        call = rollout.completions[0]
        assert call.segments == [*range(3, len(call.token_ids), 3)]  # a call that slips may be short
        _is_one_conversation(rollout)
    assert any(len(rollout.completions[0].segments) > 2 for rollout in rollouts)


def with_a_call(rollouts: list[Rollout]) -> list[Rollout]:
    """Nearly all of them: a sample at temperature 1 may slip."""
    called = [r for r in rollouts if r.status == "ok" and r.metrics["tool_calls"] == 1]
    assert len(called) > 0.75 * ROLLOUTS, rollouts
    return called


def _is_one_conversation(rollout: Rollout) -> None:
    call, answer = rollout.completions
    prompt, called, said = call.prompt_token_ids.tolist(), call.token_ids.tolist(), answer.token_ids.tolist()
    shown = answer.prompt_token_ids.tolist()[len(prompt) + len(called) :]
    assert answer.prompt_token_ids.tolist() == prompt + called + shown
    text = TOKENIZER.decode(called, skip_special_tokens=True)  # as servers read it
    _, (asked,) = parse_tool_calls(text)
    result = result_of(asked)["content"]
    assert TOKENIZER.decode(shown) == f"<|user|>{RESULT}{result}{RESULTED}<|end|><|assistant|>"
    (sequence,) = training_sequences(rollout, [1.0, 1.0])
    assert sequence.token_ids.tolist() == prompt + called + shown + said
    mask = [False] * len(prompt) + [True] * len(called) + [False] * len(shown) + [True] * len(said)
    assert sequence.loss_mask.tolist() == mask
    logprobs = np.concatenate([call.logprobs, answer.logprobs])
    assert np.array_equal(sequence.behaviour_logprobs[sequence.loss_mask], logprobs)
    assert (logprobs < 0).any() and {c.finish_reason for c in rollout.completions} == {"stop"}


async def cut_by_one(url: str, model: str, token: str) -> list[Answer]:
    """A call, and the same without its end-of-sequence."""
    problem, answers, tokens = DOMAIN.heldout_problem(0), [], 40
    async with open_session(token=token) as session:
        for _ in range(2):
            greedy = Sampling(model, 0.0, tokens)
            answers.append(await complete(session, url, Asked(problem.messages, greedy, problem.tools)))
            tokens = len(answers[0].completion.token_ids) - 1
    return answers


def roll_out(url: str, model: str, token: str, temperature: float = 1.0, **options: object) -> list[Rollout]:
    async def attempts() -> list[Rollout]:
        pool = ServerPool(limit=8)
        await pool.set_servers([url])
        async with open_session(token=token) as session:
            options.setdefault("conversations", TemplateConversations(model))
            client = LLMClient(session, pool, Sampling(model, temperature, 80), **options)
            attempt = RolloutRunner("r", DOMAIN, client, RolloutConfig(retries=0, timeout_s=HANG_S))
            specs = [RolloutSpec(index, f"{index}", f"{index}") for index in range(ROLLOUTS)]
            return await asyncio.gather(
                *(attempt(DOMAIN.heldout_problem(spec.group_id), spec) for spec in specs)
            )

    return asyncio.run(attempts())
