"""G6: every bad request gets its code, and changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Answer, Server, short
from contracts.conformance.inference.trainer_end import TrainerEnd
from contracts.conformance.verdicts import Broken

BY_CAPABILITY = {
    "truncation": {"top_p": 0.5},
    "seed": {"seed": 1},
    "stop_strings": {"stop": ["x"]},
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    "stream": {"stream": True},
}


@dataclass(frozen=True)
class Bad:
    """A request that must be refused."""

    path: str
    body: dict
    status: int
    code: str
    named: str = ""  # what the message must name


async def refusals(bench: Bench) -> str:
    tried = 0
    async with bench.new_run() as trainer:
        before = [await _greedy(bench, server) for server in bench.servers]
        await trainer.join()  # a refusal costs no epoch: the group of this one is used at the end
        for index, server in enumerate(bench.servers):
            join = (await trainer.join_requests(port=1, epoch=trainer.epoch + 1))[index]
            update = trainer.update_request(2, bench.reference.weights(2))
            bad = [*_joins(join), *_updates(update), *await _unoffered(server, update)]
            bad += await _generation(bench, server)
            for request in bad:
                await _refused(server, trainer, request)
            tried += len(bad)
            await _unknown_update(server)
        for server, greedy in zip(bench.servers, before, strict=True):
            _unchanged(greedy, await _greedy(bench, server), server)
        await _while_receiving(bench, trainer)
        await trainer.join()
        await trainer.publish(2, bench.reference.weights(2))
        for server in bench.servers:
            await bench.content(
                server, bench.reference.weights(2), 2, "refuse bad requests, publish version 2"
            )
    return f"{tried} bad requests, each with its code; greedy answers unchanged; retries repeat their answer"


async def _refused(server: Server, trainer: TrainerEnd, bad: Bad) -> None:
    status, body = await server.post(bad.path, bad.body)
    error = body.get("error", {})
    if (status, error.get("code")) == (bad.status, bad.code) and bad.named in error.get("message", ""):
        return
    if bad.path == "/request_weight_update" and status == 202:
        await server.post("/abort_weight_update", {k: bad.body[k] for k in ("run", "epoch", "version")})
    names = f", with a message that names {bad.named}" if bad.named else ""
    raise Broken(f"{status} {str(body)[:300]}", f"{bad.status} {bad.code}{names}", short(bad.path, bad.body))


def _joins(request: dict) -> list[Bad]:
    def bad(status: int, code: str, **changes: object) -> Bad:
        return Bad("/init_process_group", request | changes, status, code)

    return [
        bad(409, "other_run", run="another", takeover=False),
        bad(409, "stale_epoch", epoch=request["epoch"] - 1, group_name="another"),
        bad(409, "stale_epoch", epoch=0),
        bad(422, "unsupported_backend", backend="carrier-pigeon"),
        bad(504, "rendezvous_timeout", timeout_s=0.5),  # nobody listens there
    ]


def _updates(request: dict) -> list[Bad]:
    parameters = request["parameters"]
    name = max(parameters, key=lambda p: len(p["shape"]))["name"]

    def bad(status: int, code: str, named: str = "", **changes: object) -> Bad:
        return Bad("/request_weight_update", request | changes, status, code, named)

    def changed(**fields: object) -> list[dict]:
        return [p | fields if p["name"] == name else p for p in parameters]

    def reshaped(change: Callable[[list[int]], list[int]]) -> list[dict]:
        return [p | {"shape": change(list(p["shape"]))} if p["name"] == name else p for p in parameters]

    return [
        bad(409, "other_run", run="another"),
        bad(409, "stale_epoch", epoch=request["epoch"] - 1),
        bad(409, "stale_epoch", epoch=request["epoch"] + 7),
        bad(409, "stale_version", version=0),
        bad(422, "unknown_parameter", "model.nothing", parameters=[
            *parameters, {"name": "model.nothing", "dtype": "float32", "shape": [3]}
        ]),
        bad(422, "missing_parameter", name, parameters=[p for p in parameters if p["name"] != name]),
        bad(422, "shape_mismatch", name, parameters=reshaped(lambda s: [s[0] - 1, *s[1:]])),
        bad(422, "shape_mismatch", name, parameters=reshaped(lambda s: [*s, 1])),
        bad(422, "dtype_mismatch", name, parameters=changed(dtype="complex128")),
        bad(422, "unsupported_kv_cache", kv_cache="burn"),
    ]  # fmt: skip


async def _unoffered(server: Server, update: dict) -> list[Bad]:
    """What `/contract` does not declare is refused too."""
    contract = await server.contract()
    found = [
        Bad("/request_weight_update", update | {"kv_cache": kv}, 422, "unsupported_kv_cache")
        for kv in ("keep", "recompute")
        if kv not in contract.kv_cache
    ]
    if "staged" not in contract.capabilities:
        staged = update | {"receive": "staged"}
        found.append(Bad("/request_weight_update", staged, 422, "unsupported_receive"))
    return found


async def _generation(bench: Bench, server: Server) -> list[Bad]:
    contract = await server.contract()
    body = {"model": contract.model, "prompt": bench.reference.prompt(5), "max_tokens": 2}
    path = "/v1/completions"
    chat = {"model": contract.model, "messages": [{"role": "user", "content": "1"}], "max_tokens": 2}
    found = [
        Bad(path, body | {"no_such_parameter": 1}, 422, "unsupported_parameter", "no_such_parameter"),
        Bad("/v1/chat/completions", chat | {"no_such_parameter": 1}, 422, "unsupported_parameter"),
        Bad(path, body | {"temperature": -1}, 422, "invalid_request"),
        Bad(path, body | {"max_tokens": 0}, 422, "invalid_request"),
        Bad(path, body | {"prompt": []}, 422, "invalid_request"),
        Bad(path, body | {"max_tokens": 10**7}, 422, "context_length_exceeded"),
        Bad(path, body | {"model": "no-such-model"}, 404, "not_found"),
    ]
    for capability, fields in BY_CAPABILITY.items():
        if capability not in contract.capabilities:
            request = chat if capability == "tools" else body
            where = "/v1/chat/completions" if capability == "tools" else path
            found.append(Bad(where, request | fields, 422, "unsupported_parameter", next(iter(fields))))
    return found


async def _unknown_update(server: Server) -> None:
    status, body = await server.get("/weight_update/999999")
    if status != 404:
        raise Broken(f"GET /weight_update/999999: {status} {body}", "404: never requested", "ask for it")


async def _while_receiving(bench: Bench, trainer: TrainerEnd) -> None:
    """A retry of the request is not refused, another update is; calling it off leaves all as it was."""
    weights = bench.reference.weights(2)
    request = trainer.update_request(2, weights)
    await trainer.request_update(request)
    await trainer.request_update(request)
    name = {"run": trainer.run, "epoch": trainer.epoch, "version": 2}
    for server in bench.servers:
        other = Bad("/request_weight_update", request | {"version": 3}, 409, "update_in_progress")
        await _refused(server, trainer, other)
    for server in bench.servers:
        answers: list[Answer] = [await server.post("/abort_weight_update", name) for _ in range(2)]
        for status, body in answers:
            if status != 200 or (body.get("state"), body.get("touched")) != ("failed", False):
                raise Broken(
                    f"POST /abort_weight_update: {status} {body}",
                    "200, failed, touched false: nothing had been sent",
                    f"{server}: request version 2, send nothing, call it off, twice",
                )
        if not await server.ready():
            raise Broken("not ready after an update was called off", "GET /health: 200", "call one off")
        gone = Bad("/request_weight_update", trainer.update_request(3, weights), 409, "no_group")
        await _refused(server, trainer, gone)


async def _greedy(bench: Bench, server: Server) -> Sample:
    return await server.complete(bench.reference.prompt(12), SHORT, temperature=0)


def _unchanged(before: Sample, after: Sample, server: Server) -> None:
    same = before.token_ids == after.token_ids and before.spans == after.spans
    if same and max(abs(a - b) for a, b in zip(before.logprobs, after.logprobs, strict=True)) <= 1e-5:
        return
    raise Broken(
        f"the greedy answer changed: {before.token_ids} {before.spans} to {after.token_ids} {after.spans}",
        "equal ids, log-probabilities within 1e-5: a refusal changes nothing",
        f"{server}: send requests that are refused, complete {before.prompt_token_ids} before and after",
    )
