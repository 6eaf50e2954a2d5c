"""The gateway as a server of the contract: what it says about its weights, and how requests end."""

import asyncio
import json
from contextlib import suppress

import pytest

from contracts.channel import InitWeightChannelRequest
from contracts.errors import ContractError
from contracts.inference import SamplingParameters, WeightsInfo
from extensions.volunteers.commands import operate
from extensions.volunteers.gateway.audit import Auditor
from extensions.volunteers.gateway.observations import EVERY
from extensions.volunteers.gateway.options import GatewayOptions
from extensions.volunteers.join.gateway_client import RefusedError
from extensions.volunteers.link import link_of
from tests.extensions.volunteers.gateways import PROMPTS, Sampler, demo_model, gateway, weights

pytestmark = pytest.mark.asyncio
LIVE = WeightsInfo(version=1, state="live", run="run")


@pytest.fixture(scope="module")
def model():
    return demo_model()


async def test_without_volunteers_the_weights_are_waiting(tmp_path, model):
    async with gateway(tmp_path, model) as running:
        assert running.engine.weights_info(LIVE).state == "waiting"
        running.want(1)
        client = await running.client()
        await running.task(client)
        assert running.engine.weights_info(LIVE) == LIVE.model_copy(update={"oldest": 1})
        await running.pool.serve(weights(2), [1, 2])
        assert running.engine.weights_info(LIVE.model_copy(update={"version": 2})).oldest == 1
        assert running.engine.process().running == 1


async def test_an_aborted_request_ends_and_a_closed_one_is_not_made(tmp_path, model):
    async with gateway(tmp_path, model) as running:
        aborted = running.want(2)
        await asyncio.sleep(0)
        await running.engine.abort_requests()
        assert [delta.finish_reason for delta in await asyncio.gather(*aborted)] == ["abort", "abort"]
        closed = running.want(2)
        client = await running.client()
        task = await running.task(client)
        for each in closed:
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each
        assert (await client.upload(task.task, await Sampler(model)(task))).accepted == 2
        assert running.engine.process().running == running.engine.process().waiting == 0


async def test_a_request_that_is_asked_again_draws_the_same(tmp_path, model):
    async with gateway(tmp_path, model) as running:
        client = await running.client()

        async def keys_of(request: asyncio.Task) -> list[str]:
            task = await running.task(client)
            request.cancel()
            with suppress(asyncio.CancelledError):
                await request
            await running.pool.put_back(running.pool.tasks.every())
            return [member.key for member in task.members]

        def ask(prompt: list[int]) -> asyncio.Task:
            return asyncio.create_task(running._one(prompt, SamplingParameters(16)))

        first = await keys_of(ask(PROMPTS[0]))
        assert await keys_of(ask(PROMPTS[1])) != first
        assert await keys_of(ask(PROMPTS[0])) == first
        again = ask(PROMPTS[0])
        await running.deliver(client, Sampler(model))
        await again
        assert await keys_of(ask(PROMPTS[0])) != first  # it was answered


async def test_another_run_ends_the_tasks_of_the_last_one(tmp_path, model):
    async with gateway(tmp_path, model) as running:
        asked = running.want(4)
        client = await running.client()
        task = await running.task(client)
        key = running.engine.channel.public_keys
        running.engine.channel_joined(
            InitWeightChannelRequest(run="next", epoch=1, kind="relay", sources=["http://a"], public_keys=key)
        )
        await running.pool.begin_run("next")
        with pytest.raises(RefusedError) as refused:
            await client.upload(task.task, await Sampler(model)(task))
        assert refused.value.word == "ticket"
        await running.pool.serve(weights(1), [1])
        assert (await client.run()).run == "next"
        await running.deliver(client, Sampler(model))
        assert len(await asyncio.gather(*asked)) == 4


async def test_an_upload_of_weights_that_are_gone_has_no_penalty(tmp_path, model):
    async with gateway(tmp_path, model) as running:
        running.want(4)
        client = await running.client()
        task = await running.task(client)
        for version in (2, 3):
            running.engine._models.add(version, dict(model.named_parameters()))
        await running.pool.serve(weights(3), running.engine._models.versions)
        with pytest.raises(RefusedError) as refused:
            await client.upload(task.task, await Sampler(model)(task))
        assert refused.value.word == "stale"
        with pytest.raises(RefusedError) as refused:
            await client.ask("run", 1, 4)
        assert refused.value.word == "update_first"
        assert running.registry.get(client.address).recent_strikes == 0


async def test_who_has_old_weights_is_told_at_once_if_what_is_wanted_needs_new_ones(tmp_path, model):
    async with gateway(tmp_path, model) as running:
        client = await running.client()
        await running.pool.serve(weights(2), [1, 2])
        running.want(2)
        granted = await client.ask("run", 1, 4)
        assert (granted.task, granted.weights) == (None, weights(2))
        for version in (0, 3):
            with pytest.raises(RefusedError) as refused:
                await client.ask("run", version, 4)
            assert refused.value.word == "update_first"
        assert (await client.ask("run", 2, 4)).task is not None


async def test_a_failing_audit_fails_the_request_and_not_the_volunteer(tmp_path, model, monkeypatch):
    async with gateway(tmp_path, model) as running:
        asked = running.want(1)
        client = await running.client()

        def fails(self, batch):
            raise RuntimeError("no memory")

        monkeypatch.setattr(Auditor, "_audit", fails)
        for _ in range(3):
            with pytest.raises(RefusedError) as refused:
                await running.deliver(client, Sampler(model))
            assert refused.value.word == "audit_failed"
        with pytest.raises(ContractError, match="could not be audited 3 times"):
            await asked[0]
        assert running.registry.get(client.address).state == "active"


async def test_observe_refuses_nothing_and_later_starts_use_what_it_measured(tmp_path, model):
    half = Sampler(demo_model().bfloat16())
    options = {"volunteer_dtype": "bfloat16", "require": "commitments"}
    with pytest.raises(ValueError, match="needs .*calibration.json with them"):
        async with gateway(tmp_path, model, **options):
            pass
    async with gateway(tmp_path, model, observe=True, task_size=EVERY, **options) as running:
        running.want(EVERY)
        client = await running.client()
        task = await running.task(client, room=EVERY)
        await client.upload(task.task, await half(task))
    written = json.loads((tmp_path / "calibration.json").read_text())
    assert written["dtypes"] == ["bfloat16", "float32"]
    measured = written["numerics"]
    assert 0 < measured["near_rate"] <= 0.03
    exponents, mantissa, most_exponents, most_mantissa = measured["activations"]
    assert 0 < exponents < 0.02 < most_exponents and 0 < mantissa < 1 < most_mantissa
    async with gateway(tmp_path, model, **options) as running:
        assert running.engine.uploads._allowed.near_rate == measured["near_rate"]
        running.want(16)
        ben = await running.client("ben")
        for _ in range(16):
            task = await running.task(ben, room=1)  # whose mean is no mean of many
            await ben.upload(task.task, await half(task))
    with pytest.raises(ValueError, match="is of bfloat16 and float32, not of float32 and float32"):
        async with gateway(tmp_path, model):
            pass


async def test_the_operators_commands(tmp_path, model, capsys):
    async with gateway(tmp_path, model) as running:
        operate(["invite", "--state", str(tmp_path), "--label", "ana"])
        link = link_of(capsys.readouterr().out.splitlines()[-1])
        assert link.gateway == running.place["public_key"]
        client = await running.client("ana", link.secret)
        operate(["evict", client.address, "--state", str(tmp_path), "--why", "too slow"])
        with pytest.raises(RefusedError, match="was evicted: too slow"):
            await client.me()
        operate(["list", "--state", str(tmp_path)])
        assert f"{client.address}  ana               evicted" in capsys.readouterr().out
        operate(["restore", client.address, "--state", str(tmp_path)])
        assert (await client.me()).state == "active"
        operate(["ledger", "verify", "--state", str(tmp_path)])
        assert "\n3 entries" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="directory of no gateway"):
        operate(["list", "--state", str(tmp_path / "elsewhere")])


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"public_host": "0.0.0.0"}, "without TLS"),
        ({"certificate": "a"}, "given together"),
        ({"certificate": "a", "key": "b", "behind_proxy": "10.0.0.1"}, "the proxy has the certificate"),
    ],
)
async def test_a_public_listener_without_tls_is_refused(changes, why):
    from argparse import Namespace

    given = dict.fromkeys(GatewayOptions._fields) | {"public_host": "127.0.0.1"} | changes
    with pytest.raises(ValueError, match=why):
        GatewayOptions.of(Namespace(**given))
