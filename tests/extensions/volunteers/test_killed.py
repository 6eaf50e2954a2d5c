"""What a `kill -9` in an upload leaves: of the gateway, and of a volunteer."""

import asyncio
import json
import sys

import pytest

from extensions.stored_weights.store.signing import SigningKey
from extensions.volunteers.commands import operate
from extensions.volunteers.gateway import ledger
from extensions.volunteers.join.gateway_client import AwayError, GatewayClient, RefusedError
from extensions.volunteers.link import link_of
from extensions.volunteers.messages import Accepted, Upload
from pipelinerl.clients.http_session import open_session
from tests.extensions.volunteers.gateways import Sampler, demo_model, gateway

pytestmark = pytest.mark.asyncio
READY = "volunteers reach the gateway"


@pytest.fixture(scope="module")
def sample():
    return Sampler(demo_model())


async def upload_until_it_dies(state, moment, sample, capsys):
    """Returns a volunteer whose upload killed the gateway."""
    program = [sys.executable, "-m", "tests.extensions.volunteers.dying", str(state), moment]
    dying = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    while READY not in (line := (await dying.stdout.readline()).decode()):
        assert line
    operate(["invite", "--state", str(state), "--label", "ana"])
    url, public_key, secret = link_of(capsys.readouterr().out.splitlines()[-1])
    async with open_session(None) as session:
        client = GatewayClient(session, url, public_key, SigningKey.load_or_create(state / "ana.volunteer"))
        await client.run()
        await client.register(secret, "test", "cpu")
        task = (await client.ask("run", 1, 16)).task
        body = client._body(Upload, task=task.task, members=await sample(task))
        with pytest.raises(AwayError):
            await client._answer("PUT", f"/v1/tasks/{task.task}", body, Accepted, 600)
    assert await dying.wait() == -9
    return task


@pytest.mark.parametrize("moment, entries", [("in the audit", 1), ("after the ledger's entry", 2)])
async def test_what_a_killed_gateway_did_not_answer_is_made_again_and_answered_once(
    tmp_path, sample, capsys, moment, entries
):
    lost = await upload_until_it_dies(tmp_path, moment, sample, capsys)
    async with gateway(tmp_path) as running:
        asked = running.want()  # the run asks again
        key = SigningKey.load_or_create(tmp_path / "ana.volunteer")
        client = GatewayClient(running._session, running.url, running.place["public_key"], key)
        await client.run()
        with pytest.raises(RefusedError) as refused:
            await client.upload(lost.task, await sample(lost))
        assert refused.value.word == "ticket"
        task = await running.deliver(client, sample)
        answers = await asyncio.gather(*asked)
        assert [answer.token_ids for answer in answers] == [one.token_ids for one in await sample(task)]
        assert [member.key for member in task.members] == [member.key for member in lost.members]
        rows = running.registry.database.rows("SELECT body FROM ledger WHERE kind = 'accepted'")
        keys = [[each["key"] for each in json.loads(row["body"])["members"]] for row in rows]
        assert keys == [[member.key for member in task.members]] * entries
        assert ledger.verify(running.registry.database) == 1 + len(rows)
        assert running.registry.get(client.address).state == "active"


async def test_a_volunteer_that_dies_in_an_upload_goes_on_with_its_task(tmp_path, sample):
    async with gateway(tmp_path) as running:
        asked = running.want()
        client = await running.client()
        task = await running.task(client)
        made = await sample(task)
        body = client._body(Upload, task=task.task, members=made)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.place["port"])
        head = f"PUT /v1/tasks/{task.task} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[: len(body) // 2])
        await writer.drain()
        writer.transport.abort()  # as the system does for a process that is gone
        assert (await running.task(client)).task == task.task
        await client.upload(task.task, made)
        assert len(await asyncio.gather(*asked)) == len(task.members)
