"""The listener for volunteers: who may say what, once, and what becomes of everything else."""

import asyncio
import json
import os
import socket
import sqlite3

import aiohttp
import pytest

from extensions.stored_weights.store.signing import SigningKey
from extensions.volunteers.gateway import ledger
from extensions.volunteers.gateway.address_limits import BURST, USELESS_PER_S, RequestRates
from extensions.volunteers.gateway.database import Database, DatabaseError
from extensions.volunteers.gateway.listener import OF_ADDRESS
from extensions.volunteers.gateway.uploads import public_name
from extensions.volunteers.join.gateway_client import GatewayClient, RefusedError
from extensions.volunteers.messages import VOLUNTEER_TYPE, Ask, Upload, signed
from tests.extensions.volunteers.gateways import Sampler, demo_model, gateway, weights
from tests.limits import HANG_S

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def sample():
    return Sampler(demo_model())


def asked(client: GatewayClient) -> Ask:
    who = {"volunteer": client.address, "gateway": client._gateway.ed25519, "life": client._life}
    return Ask(**who, counter=0, run="run", version=1, room=2)


class Recorded(GatewayClient):
    """Keeps the bytes of its requests."""

    async def _answer(self, method, path, body, kind, timeout_s):
        self.sent = getattr(self, "sent", []) + [(method, path, body)]
        return await super()._answer(method, path, body, kind, timeout_s)


async def send(running, method: str, path: str, body: bytes) -> tuple[int, dict]:
    asking = running._session.request(method, running.url + path, data=body)
    async with asking as response:
        return response.status, json.loads(await response.read() or b"{}")


def word(answer: tuple[int, dict]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


async def test_only_a_registered_key_gets_tasks_and_only_for_itself(tmp_path):
    async with gateway(tmp_path) as running:
        client = await running.client()
        stranger = SigningKey.load_or_create(tmp_path / "stranger")
        own = asked(client)
        own.volunteer = stranger.public.id
        for message, code in ((own, "unknown"), (asked(client), "signature")):
            body = signed(stranger, message, VOLUNTEER_TYPE)
            assert word(await send(running, "POST", "/v1/tasks", body)) == (401, code)


async def test_a_message_is_taken_once_and_not_by_another_start(tmp_path, sample):
    async with gateway(tmp_path) as running:
        running.want(8)
        client = await running.client("ana", kind=Recorded)
        task = await running.task(client)
        assert word(await send(running, *client.sent[-1])) == (401, "counter")
        assert (await client.upload(task.task, await sample(task))).accepted == 8
        assert (await send(running, *client.sent[-1]))[0] == 200  # the same bytes have the same answer
        assert running.registry.get(client.address).tasks == 1
        with pytest.raises(RefusedError) as refused:
            await client.upload(task.task, await sample(task))  # signed anew
        assert refused.value.word == "ticket"
        again = await running.client("ana")  # another process with its key: its counter begins anew
        assert (await again.me()).tasks == 1
        client._life = "0" * 16
        with pytest.raises(RefusedError) as refused:
            await client.me()
        assert refused.value.word == "life"


async def test_uploads_at_the_same_time_count_once(tmp_path, sample):
    async with gateway(tmp_path) as running:
        wanted = running.want(8)
        client = await running.client()
        task = await running.task(client)
        made = await sample(task)
        who = {"volunteer": client.address, "gateway": client._gateway.ed25519, "life": client._life}
        fields = {**who, "task": task.task, "members": made}
        bodies = [signed(client._key, Upload(counter=n, **fields), VOLUNTEER_TYPE) for n in range(50, 56)]
        answers = await asyncio.gather(
            *(send(running, "PUT", f"/v1/tasks/{task.task}", body) for body in bodies)
        )
        statuses = sorted(status for status, _ in answers)
        assert statuses[0] == 200
        assert {*statuses[1:]} <= {410, 503}  # 503: while the first one is audited
        assert running.registry.get(client.address).completions == 8
        assert len(await asyncio.gather(*wanted)) == 8


async def test_a_volunteer_has_one_task_at_a_time(tmp_path):
    async with gateway(tmp_path, task_size=2) as running:
        running.want(8)
        client = await running.client()
        granted = await asyncio.gather(*(running.pool.ask(asked(client), HANG_S) for _ in range(4)))
        assert len({task.name for task in granted}) == 1
        assert running.pool.tasks.completions == 2


async def test_who_is_put_out_while_it_waits_gets_no_task(tmp_path):
    async with gateway(tmp_path) as running:
        client = await running.client()
        waiting = asyncio.create_task(running.task(client))
        while not running.pool.active:
            await asyncio.sleep(0)
        running.registry.put_out(client.address, "evicted", "too slow")
        running.want(2)
        with pytest.raises(RefusedError, match="was evicted: too slow"):
            await waiting
        assert running.pool.tasks.completions == 0


async def test_a_full_disk_loses_no_completion(tmp_path, sample, monkeypatch):
    async with gateway(tmp_path) as running:
        wanted = running.want(4)
        client = await running.client()

        def full(*_):
            raise sqlite3.OperationalError("database or disk is full")

        for name in ("accept", "note"):
            with monkeypatch.context() as patched:
                patched.setattr(running.registry, name, full)
                task = await running.task(client)
                if name == "note":
                    await client.give_back(task.task)
                    continue
                with pytest.raises(RefusedError, match="could not audit it"):
                    await client.upload(task.task, await sample(task))
        await running.deliver(client, sample)
        assert len(await asyncio.gather(*wanted)) == 4


async def test_what_was_not_delivered_goes_to_another_with_the_same_weights_while_there_is_one(tmp_path):
    async with gateway(tmp_path) as running:
        running.want(2)
        ana, ben = await running.client("ana"), await running.client("ben")
        task = await running.task(ana)
        await ana.give_back(task.task)
        running.pool.presence.begin_asking(ben.address, 1)
        assert running.pool.queue.first(running.pool._suits(asked(ana))) is None
        bens = await running.task(ben)
        assert [member.key for member in bens.members] == [member.key for member in task.members]
        await running.pool.give_back(running.pool.tasks.of(ben.address)[0], "expired")
        await running.pool.serve(weights(2), [1, 2])
        newer = asked(ben)
        newer.version = 2
        running.pool.presence.begin_asking("another", 1)  # who can draw it with version 1
        assert running.pool.queue.first(running.pool._suits(newer)) is None
        running.pool.presence.end_asking("another", is_there=False)
        assert running.pool.queue.first(running.pool._suits(newer)) is not None


async def test_a_task_is_its_volunteers_and_open(tmp_path, sample):
    async with gateway(tmp_path) as running:
        running.want(8)
        ana, ben = await running.client("ana"), await running.client("ben")
        task = await running.task(ana)
        with pytest.raises(RefusedError) as refused:
            await ben.upload(task.task, await sample(task))
        assert refused.value.word == "ticket"
        await running.pool.give_back(running.pool.tasks.find(task.task, ana.address), "expired")
        with pytest.raises(RefusedError) as refused:
            await ana.upload(task.task, await sample(task))
        assert refused.value.word == "ticket"
        assert [member.key for member in (await running.task(ben)).members] == [m.key for m in task.members]


async def test_a_volunteer_that_forgot_its_task_gets_it_again(tmp_path):
    async with gateway(tmp_path) as running:
        running.want(8)
        client = await running.client()
        task = await running.task(client)
        assert (await running.task(client)).task == task.task


async def test_who_is_put_out_cannot_come_again(tmp_path, sample):
    async with gateway(tmp_path) as running:
        running.want(8)
        secret = running.invite(uses=2)
        client = await running.client("ana", secret)
        task = await running.task(client)
        made = await sample(task)
        made[0].token_ids[0] ^= 1
        with pytest.raises(RefusedError, match="randomness"):
            await client.upload(task.task, made)
        for again in (lambda: running.client("ana", running.invite()), lambda: running.client("ben", secret)):
            with pytest.raises(RefusedError) as refused:
                await again()
            assert refused.value.status == 403
            assert "was slashed" in str(refused.value)
        kept = (tmp_path / "refused" / f"{public_name(task.task)}.json").read_bytes()
        assert json.loads(kept)["payloadType"] == VOLUNTEER_TYPE
        running.registry.restore(client.address)
        assert (await client.me()).state == "active"


@pytest.mark.parametrize(
    "changes, why", [({"uses": 0}, "used up"), ({"days": -1}, "expired"), (None, "not one of this")]
)
async def test_an_invite_that_is_of_no_use(tmp_path, changes, why):
    async with gateway(tmp_path) as running:
        secret = "0" * 32 if changes is None else running.invite(**changes)
        with pytest.raises(RefusedError, match=why):
            await running.client("ana", secret)


async def test_who_does_not_deliver_is_paused(tmp_path):
    async with gateway(tmp_path) as running:
        running.want(8)
        client = await running.client()
        for _ in range(6):
            standing = await client.give_back((await running.task(client)).task)
        assert standing.state == "paused"
        with pytest.raises(RefusedError) as refused:
            await running.task(client)
        assert refused.value.word == "paused"


async def test_another_form_is_a_strike_with_the_field_in_the_answer(tmp_path, sample):
    async with gateway(tmp_path) as running:
        running.want(8)
        client = await running.client()
        task = await running.task(client)
        await client.me()
        made = [{"token_ids": [1], "logprobs": [0.0], "finish_reason": "stop", "reward": 1}] * 8
        another = signed(client._key, asked(client), VOLUNTEER_TYPE)
        assert word(await send(running, "PUT", f"/v1/tasks/{task.task}", another)) == (400, "bad_request")
        body = {
            "action": "upload", "volunteer": client.address, "gateway": client._gateway.ed25519,
            "life": client._life, "counter": 999, "task": task.task, "members": made,
        }  # fmt: skip
        envelope = client._key.sign(json.dumps(body).encode(), VOLUNTEER_TYPE)
        status, answer = await send(running, "PUT", f"/v1/tasks/{task.task}", envelope)
        assert (status, answer["error"]["code"]) == (422, "schema")
        assert "reward" in answer["error"]["message"]
        assert running.registry.get(client.address).recent_strikes == 1


async def test_sizes(tmp_path, sample):
    async with gateway(tmp_path) as running:
        running.want(2)
        client = await running.client("ana", kind=Recorded)
        task = await running.task(client)
        await client.me()
        method, path, message = client.sent[-1]
        padded = message[:-1] + b" " * 20_000 + b"}"
        for method, path in (("POST", "/v1/me"), ("PUT", f"/v1/tasks/{task.task}"), ("PUT", "/v1/tasks/x")):
            assert word(await send(running, method, path, padded)) == (413, "too_large")
        await running.pool.give_back(running.pool.tasks.find(task.task, client.address), "expired")
        with pytest.raises(RefusedError) as refused:
            await client.upload(task.task, await sample(task))
        assert refused.value.word == "ticket"


async def test_malformed_requests_get_an_answer_below_500_and_volunteers_their_tasks(tmp_path, sample):
    bodies = [b"", b"{}", b"[]", b'{"payload": 1}', b"\xff\xfe", b"null", os.urandom(200)]
    bodies += [json.dumps({"payload": "e30=", "payloadType": "x", "signatures": s}).encode() for s in (0, [])]
    bodies += [json.dumps({"payload": p, "payloadType": 5, "signatures": []}).encode() for p in ("e30=", "!")]
    routes = [("POST", "/v1/tasks"), ("PUT", "/v1/tasks/x"), ("DELETE", "/v1/tasks/" + "0" * 32)]
    routes += [
        ("POST", "/v1/volunteers"),
        ("POST", "/v1/me"),
        ("GET", "/v1/ledger?from=-1"),
        ("GET", "/nothing"),
    ]
    async with gateway(tmp_path) as running:
        running.want(8)
        client = await running.client()
        statuses = [
            (await send(running, method, path, body))[0] for method, path in routes for body in bodies
        ]
        assert {*statuses} <= {400, 401, 404, 413, 429}
        assert running.pool.tasks.completions == 0
        assert client.address in {each.address for each in running.registry.every()}


async def test_an_address_that_asks_in_vain_is_told_to_slow_down():
    now = 0.0
    status = 404

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": status, "headers": []})

    rates = RequestRates(app, lambda: now)

    async def asked(address: str, count: int) -> list[int]:
        sent = []

        async def send(message):
            sent.append(message.get("status"))

        for _ in range(count):
            await rates({"type": "http", "method": "POST", "client": (address, 1)}, None, send)
        return [each for each in sent if each]

    assert await asked("a", int(BURST) + 5) == [404] * int(BURST) + [429] * 5
    assert await asked("b", 1) == [404]
    now = 1.0
    assert await asked("a", int(USELESS_PER_S) + 1) == [404] * int(USELESS_PER_S) + [429]
    status = 200  # what volunteers send is not counted
    assert await asked("c", 5 * int(BURST)) == [200] * 5 * int(BURST)


async def test_an_address_has_few_connections(tmp_path):
    async with gateway(tmp_path) as running:
        loop = asyncio.get_running_loop()
        sockets = []
        closed = 0
        for _ in range(OF_ADDRESS + 8):
            each = socket.socket()
            each.setblocking(False)
            await loop.sock_connect(each, ("127.0.0.1", running.place["port"]))
            sockets.append(each)
        for each in sockets[-8:]:
            try:
                closed += await loop.sock_recv(each, 1) == b""
            except ConnectionResetError:
                closed += 1
        for each in sockets:
            each.close()
        assert closed == 8


async def test_the_ledger_names_an_entry_that_was_changed(tmp_path, sample):
    async with gateway(tmp_path) as running:
        running.want(8)
        client = await running.client()
        await running.deliver(client, sample)
        async with aiohttp.ClientSession() as session, session.get(f"{running.url}/v1/ledger?from=2") as got:
            lines = (await got.text()).splitlines()
    head = json.loads(lines[0])
    assert head["signatures"]
    assert [json.loads(line)["kind"] for line in lines[1:]] == ["accepted"]
    database = Database(tmp_path)
    assert ledger.verify(database) == 2
    with sqlite3.connect(tmp_path / "volunteers.db") as connection:
        connection.execute(
            "UPDATE ledger SET body = replace(body, '\"version\":1', '\"version\":2') WHERE seq = 2"
        )
    with pytest.raises(DatabaseError, match="entry 2 of the ledger"):
        ledger.verify(database)
    with pytest.raises(DatabaseError):
        async with gateway(tmp_path):
            pass
    (tmp_path / "volunteers.db-wal").unlink(missing_ok=True)
    (tmp_path / "volunteers.db").write_bytes(b"SQLite format 3\0" + bytes(4096))
    with pytest.raises(DatabaseError, match="volunteers.db"):
        Database(tmp_path)
