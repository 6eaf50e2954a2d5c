"""Completions made in several requests, against a real server."""

import asyncio

import numpy as np
import pytest

from contracts.records import VersionSpan
from contracts.token_fields import TokenFieldError
from extensions.demo.tokenizer import byte_tokenizer
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.llm_client import LLMClient, Sampling
from pipelinerl.clients.partial_completions import SegmentPolicy, joined, prompt_of_next
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.config import RepetitionConfig
from pipelinerl.rollouts.runner import RolloutSpec
from pipelinerl.rollouts.slot_queue import SlotQueue
from tests.builders import completion, rollout
from tests.inference_adapters.servers import serving, wait_ready

GREEDY = Sampling("scripted", temperature=0.0, max_tokens=11)


@pytest.fixture(scope="module")
def url():
    with serving("inference_adapters.scripted") as server:
        wait_ready(server.url)
        yield server.url


def ask(url: str, policy: SegmentPolicy, **options):
    """The completion, and between which of its requests a turn was waited for."""
    turns = []

    async def turn():
        turns.append(pool.in_flight)

    async def scenario():
        await pool.set_servers([url])
        async with open_session(token=None) as session:
            client = LLMClient(session, pool, GREEDY, policy, acquire_slot=turn, **options)
            return await client.chat([{"role": "user", "content": "go on"}])

    pool = ServerPool(limit=1)
    answer = asyncio.run(scenario())
    return answer, turns


def test_in_segments_the_same_tokens_are_sampled_as_in_one_request(url):
    whole, _ = ask(url, SegmentPolicy())
    cut, turns = ask(url, SegmentPolicy(segment_tokens=4))
    assert len(whole.completion.token_ids) == 11 and whole.completion.segments == []
    assert cut.completion.segments == [4, 8] and turns == [0, 0]  # no slot is held meanwhile
    for name in ("prompt_token_ids", "token_ids"):
        assert np.array_equal(getattr(cut.completion, name), getattr(whole.completion, name))
    assert np.allclose(cut.completion.logprobs, whole.completion.logprobs, atol=1e-5)
    assert cut.text == whole.text and cut.completion.finish_reason == "length"
    assert cut.completion.spans == whole.completion.spans


def test_one_that_repeats_itself_is_stopped():
    repeating = completion([1], [5] * 4, finish_reason="length")
    policy = SegmentPolicy(4, RepetitionConfig(window=1, times=3))
    assert policy.stopped(repeating).finish_reason == "repetition"
    ended = completion([1], [5] * 4, finish_reason="stop")
    assert policy.stopped(ended).finish_reason == "stop"
    assert SegmentPolicy(4).stopped(repeating).finish_reason == "length"


def test_only_a_full_segment_is_gone_on_with():
    """A server that ran out of context has sampled less than it was asked for."""
    policy = SegmentPolicy(segment_tokens=3)
    assert policy.unfinished(completion([1], [2, 3, 4], finish_reason="length"), max_tokens=8)
    assert not policy.unfinished(completion([1], [2, 3], finish_reason="length"), max_tokens=8)
    assert not policy.unfinished(completion([1], [2, 3, 4], finish_reason="length"), max_tokens=3)
    assert not policy.unfinished(completion([1], [2, 3, 4], finish_reason="stop"), max_tokens=8)
    assert not SegmentPolicy().unfinished(completion([1], [2, 3, 4], finish_reason="length"), max_tokens=3)
    assert policy.budget(8) == 3 and policy.budget(2) == 2


def in_two_segments():
    first = completion([1, 2], [3, 4], spans=[VersionSpan(1, 0, 1), VersionSpan(2, 1, 2)])
    assert prompt_of_next(first) == [1, 2, 3, 4]
    return joined(first, completion([1, 2, 3, 4], [5, 6], spans=[VersionSpan(2, 0, 1), VersionSpan(4, 1, 2)]))


def test_tokens_keep_their_log_probabilities_and_versions():
    both = in_two_segments()
    assert both.token_ids.tolist() == [3, 4, 5, 6] and both.logprobs.tolist() == [-0.5, -1.5] * 2
    assert both.spans == [VersionSpan(1, 0, 1), VersionSpan(2, 1, 3), VersionSpan(4, 3, 4)]
    assert both.segments == [2]


def test_token_fields_of_the_parts_are_joined():
    def part(prompt: list[int], sampled: list[int], **fields: list[int]):
        arrays = {name: np.array(values, dtype=np.uint8) for name, values in fields.items()}
        return completion(prompt, sampled, token_fields=arrays)

    both = joined(part([1], [2, 3], mark=[20, 30]), part([1, 2, 3], [4], mark=[40]))
    assert both.token_fields["mark"].tolist() == [20, 30, 40]
    assert both.token_fields["mark"].dtype == np.uint8
    with pytest.raises(TokenFieldError, match="do not all carry the token fields one"):
        joined(part([1], [2, 3], mark=[20, 30], one=[1, 1]), part([1, 2, 3], [4], mark=[40]))


def test_earlier_segments_can_be_left_out_of_the_loss():
    one = rollout(0, completions=[in_two_segments()])
    (every,) = training_sequences(one, [1.0])
    (last,) = training_sequences(one, [1.0], last_segments=True)
    assert every.loss_mask.tolist() == [False, False, True, True, True, True]
    assert last.loss_mask.tolist() == [False, False, False, False, True, True]
    assert last.versions.tolist() == every.versions.tolist() == [-1, -1, 1, 2, 2, 4]


def test_a_character_that_begins_in_one_segment_and_ends_in_the_next(url):
    tokenizer = byte_tokenizer(64)
    euro = np.array(tokenizer("€")["input_ids"], dtype=np.int32)
    assert len(euro) == 3
    assert "".join(tokenizer.decode(part) for part in (euro[:2], euro[2:])) != "€"
    decoded, _ = ask(url, SegmentPolicy(4), decode=lambda token_ids: f"{len(token_ids)} at once")
    assert decoded.text == "11 at once"


@pytest.mark.asyncio
async def test_new_rollouts_get_a_slot_before_those_between_segments():
    freed = []
    queue = SlotQueue(lambda: freed.append(True))
    queue.put([RolloutSpec(0, "0-0", "a"), RolloutSpec(0, "0-1", "b")])
    waiting = [asyncio.create_task(queue.wait_for_slot()) for _ in range(3)]
    await asyncio.sleep(0)
    assert queue.between_segments == len(freed) == 3
    waiting[0].cancel()  # it is over, and has not yet left the queue
    assert [queue.pop_new().rollout_id for _ in range(2)] == ["0-0", "0-1"]
    assert queue.pop_new() is None
    assert queue.resume_one()
    await waiting[1]
    assert waiting[0].cancelled() and not waiting[2].done() and queue.between_segments == 1
    assert queue.resume_one() and not queue.resume_one()
    await waiting[2]
