"""What the audit accepts is what a trusted server would have drawn, whoever made it."""

import asyncio
import contextlib
import copy
import dataclasses

import msgspec
import pytest
import torch

from benchmarks.volunteers.cheats import BestOf, cooler, cut_short, edited, greedy, hinted, own_noise
from extensions.volunteers.gateway.ledger import sha256_of_ids
from extensions.volunteers.gateway.numerics import (
    FLOAT32,
    Activations,
    Calibration,
    write_calibration,
)
from extensions.volunteers.gateway.serving import _sha256_of_config
from extensions.volunteers.join.gateway_client import RefusedError
from tests.extensions.volunteers.gateways import END, MODEL, Sampler, demo_model, gateway, other_weights

pytestmark = pytest.mark.asyncio
LONG = 48  # so that each cheat meets a token that it would draw otherwise


@pytest.fixture(scope="module")
def model():
    return demo_model()


def even(prompt, ids):
    """A reward that half of all answers get."""
    return float(sum(ids) % 2 == 0)


def rather_even(prompt, ids):
    """Returns the ids with one token changed, unless they have the reward."""
    return list(ids) if even(prompt, ids) else [ids[0] ^ 1, *ids[1:]]


def with_own_logprobs(cheat, sample):
    """Returns the cheat, with the log-probabilities that the audit will find."""

    async def cheating(task, make):
        made = await cheat(task, make)
        pairs = zip(task.members, made, strict=True)
        return [sample.told(member.prompt, one.token_ids, task.temperature) for member, one in pairs]

    return cheating


CHEATS = {
    "best of 4": BestOf(even),
    "best of 4, keeps the prescribed one": BestOf(even, keeps=True),
    "own noise": own_noise,
    "greedy": greedy,
    "cooler": cooler,
    "edited": edited(rather_even),
    "another prompt": hinted,
}


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
async def test_a_token_that_the_key_does_not_prescribe_slashes(tmp_path, model, cheat):
    sample = Sampler(model)
    cheating = with_own_logprobs(cheat, sample)
    async with gateway(tmp_path, model) as running:
        running.want(LONG)
        client = await running.client()
        with pytest.raises(RefusedError) as refused:
            for _ in range(LONG // 16):
                await running.deliver(client, sample, cheating)
        assert refused.value.word == "randomness"
        assert running.registry.get(client.address).state == "slashed"


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
async def test_it_passes_without_the_check(tmp_path, model, cheat):
    sample = Sampler(model)
    async with gateway(tmp_path, model, off=["randomness", "near_misses"]) as running:
        running.want(16)
        await running.deliver(await running.client(), sample, with_own_logprobs(cheat, sample))


@pytest.mark.parametrize("off", [(), ("randomness", "near_misses")])
async def test_other_weights_are_caught_at_the_first_token_that_differs(tmp_path, model, off):
    stale = Sampler(other_weights(model), judge=model)
    async with gateway(tmp_path, model, off) as running:
        running.want(LONG)
        client = await running.client()
        if off:
            await running.deliver(client, stale)
            return
        with pytest.raises(RefusedError, match="is not the one that the key prescribes"):
            for _ in range(LONG // 16):
                await running.deliver(client, stale)


async def test_a_cut_tail_passes_without_the_check(tmp_path, model):
    async with gateway(tmp_path, model, off=["termination"]) as running:
        running.want(8)
        await running.deliver(await running.client(), Sampler(model), cut_short)


async def test_log_probabilities_of_other_weights_are_a_strike_and_three_strikes_slash(tmp_path, model):
    wrong = Sampler(model, judge=other_weights(model))
    async with gateway(tmp_path, model, task_size=4) as running:
        running.want(12)
        client = await running.client()
        words = []
        for _ in range(3):
            with pytest.raises(RefusedError) as refused:
                await running.deliver(client, wrong)
            words.append((refused.value.word, refused.value.status))
        assert words == [("logprobs", 422), ("logprobs", 422), ("logprobs", 403)]
        assert "3 strikes in 100 tasks" in running.registry.get(client.address).reason


async def test_what_a_volunteer_cannot_meet_is_not_given_to_it_again(tmp_path, model):
    async with gateway(tmp_path, model) as running:
        asked = running.want(4)
        ana, ben = await running.client("ana"), await running.client("ben")
        with pytest.raises(RefusedError, match="log-probabilities"):
            await running.deliver(ana, Sampler(model, judge=other_weights(model)))
        others = running.want(1)
        await running.deliver(ana, Sampler(model))
        assert len(await asyncio.gather(*others)) == 1
        await running.deliver(ben, Sampler(model))
        assert len(await asyncio.gather(*asked)) == 4


async def test_rounding_that_always_helps_is_caught_over_a_life(tmp_path, model):
    async with gateway(tmp_path, model, volunteer_dtype="bfloat16") as running:
        running.want(16)
        client = await running.client()
        address = client.address
        with running.registry.database.transaction() as connection:  # a long life of such tokens
            connection.execute(
                "UPDATE volunteers SET tokens = 5000, near_misses = 400 WHERE address = ?", (address,)
            )
        with pytest.raises(RefusedError) as refused:
            await running.deliver(client, Sampler(model))
        assert refused.value.word == "near_misses"


def changed(**fields):
    async def cheat(task, make):
        made = await make(task)
        return [msgspec.structs.replace(made[0], **fields), *made[1:]]

    return cheat


async def too_few(task, make):
    return (await make(task))[1:]


@pytest.mark.parametrize(
    "cheat, word",
    [
        (cut_short, "termination"),
        (changed(finish_reason="length"), "termination"),
        (changed(token_ids=[END, 5], logprobs=[0.0, 0.0], finish_reason="length"), "termination"),
        (changed(token_ids=[]), "schema"),
        (changed(token_ids=[261], logprobs=[0.0]), "schema"),
        (changed(token_ids=[-1], logprobs=[0.0]), "schema"),
        (changed(logprobs=[0.0] * 17), "schema"),
        (changed(token_ids=[5] * 17, logprobs=[0.0] * 17), "schema"),
        (too_few, "schema"),
    ],
)
async def test_what_is_no_whole_completion_is_refused(tmp_path, model, cheat, word):
    async with gateway(tmp_path, model) as running:
        running.want(8)
        with pytest.raises(RefusedError) as refused:
            await running.deliver(await running.client(), Sampler(model), cheat)
        assert refused.value.word == word


@pytest.mark.parametrize("temperature", [1.0, 0.0, 0.7])
async def test_the_answer_is_what_a_trusted_server_draws_with_the_audits_log_probabilities(
    tmp_path, model, temperature
):
    async with gateway(tmp_path, model) as running:
        asked = running.want(32, temperature=temperature)
        client = await running.client()
        tasks = [await running.deliver(client, Sampler(model)) for _ in range(2)]
        answers = await asyncio.gather(*asked)
        expected = [one for task in tasks for one in await Sampler(model)(task)]
        assert [answer.token_ids for answer in answers] == [one.token_ids for one in expected]
        for answer, one in zip(answers, expected, strict=True):
            torch.testing.assert_close(torch.tensor(answer.logprobs), torch.tensor(one.logprobs))
            assert {*answer.versions} == {1}
        rows = running.registry.database.rows("SELECT body FROM ledger WHERE kind = 'accepted'")
        assert sum(sha256_of_ids(one.token_ids) in row["body"] for row in rows for one in expected) >= 32


async def test_bfloat16_volunteers_pass_with_their_tolerance(tmp_path, model):
    half = Sampler(demo_model().to(torch.bfloat16))
    async with gateway(tmp_path, model, volunteer_dtype="bfloat16") as running:
        running.want(64)
        client = await running.client()
        for _ in range(4):
            await running.deliver(client, half)


def in_int8(model):
    """Returns a copy whose matrices are rounded to 8 bits, row by row."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.dim() == 2:
                step = parameter.abs().amax(1, keepdim=True) / 127
                parameter.copy_((parameter / step).round() * step)
    return other


@contextlib.asynccontextmanager
async def committed(state, model, off=(), **changes):
    """Yields a gateway that requires commitments, with wide tolerances of float32, and its volunteer."""
    state.mkdir(exist_ok=True)
    measured = dataclasses.replace(FLOAT32, activations=Activations(0.0, 0.001, 0.125, 0.25))
    write_calibration(state, Calibration(("float32", "float32"), _sha256_of_config(MODEL), measured))
    async with gateway(state, model, off, require="commitments", **changes) as running:
        running.want(16)
        yield running, await running.client()


@pytest.mark.parametrize("others", [other_weights, in_int8])
async def test_commitments_show_other_weights_in_the_first_task_whatever_the_tokens_are(
    tmp_path, model, others
):
    sample = Sampler(others(model), judge=model)
    off = ["randomness", "near_misses"]
    async with committed(tmp_path / "with", model, off) as (running, client):
        with pytest.raises(RefusedError, match="are not those of the run's weights") as refused:
            await running.deliver(client, sample)
        assert (refused.value.word, refused.value.status) == ("activations", 403)
    async with committed(tmp_path / "without", model, [*off, "activations"]) as (running, client):
        await running.deliver(client, sample)


async def test_commitments_to_the_runs_weights_pass_and_hide_no_edited_token(tmp_path, model):
    async with committed(tmp_path, model, task_size=8) as (running, client):
        await running.deliver(client, Sampler(model))

        async def with_proofs(task, make):
            made = await make(task)
            ids = [rather_even(None, one.token_ids) for one in made]
            pairs = zip(task.members, ids, strict=True)
            return [Sampler(model).told(member.prompt, one, 1.0) for member, one in pairs]

        with pytest.raises(RefusedError) as refused:
            await running.deliver(client, Sampler(model), with_proofs)
        assert refused.value.word == "randomness"


@pytest.mark.parametrize(
    "proofs, why",
    [
        (lambda right: b"", "0 bytes of proofs"),
        (lambda right: right + right, "bytes of proofs"),
        (lambda right: b"\0\0" + right[2:], "modulus 0"),
        (lambda right: right[:-2] + (65500).to_bytes(2, "big"), "coefficient 65500"),
    ],
)
async def test_what_cannot_be_proofs_is_a_strike(tmp_path, model, proofs, why):
    async def cheat(task, make):
        made = await make(task)
        return [*made[:-1], msgspec.structs.replace(made[-1], proofs=proofs(made[-1].proofs))]

    async with committed(tmp_path, model) as (running, client):
        with pytest.raises(RefusedError, match=why) as refused:
            await running.deliver(client, Sampler(model), cheat)
        assert (refused.value.word, refused.value.status) == ("schema", 422)


async def test_a_returned_task_selects_nothing(tmp_path, model):
    """A volunteer that gives back what it does not like has, key by key, what an honest one has."""
    sample = Sampler(model)
    async with gateway(tmp_path, model) as running:
        asked = running.want(12)
        picky, other = await running.client("picky"), await running.client("other")
        for _ in range(5):
            task = await running.task(picky, room=4)
            await picky.give_back(task.task)
        while any(not one.done() for one in asked):
            await running.deliver(other, sample)
            await asyncio.sleep(0)
        kept = [tuple(one.result().token_ids) for one in asked]
    async with gateway(tmp_path / "b", model) as running:
        asked = running.want(12)
        await running.deliver(await running.client(), sample)
        assert kept == [tuple(answer.token_ids) for answer in await asyncio.gather(*asked)]
