"""Requests to sleep and to wake that must be refused, and change nothing. G19 uses them."""

from typing import Any

from contracts.conformance.inference.bad_requests import BadRequest, check_refused
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.sleeps import SLEEP, WAKE, sleep_request, wake_request
from contracts.conformance.inference.trainer_peer import TrainerPeer


def invalid(path: str, body: dict[str, Any]) -> BadRequest:
    return BadRequest(path, body, 422, "invalid_request")


def bad_requests(trainer: TrainerPeer) -> list[BadRequest]:
    """Returns requests that a server refuses, awake and asleep."""
    good = sleep_request(trainer)
    without = {key: value for key, value in good.items() if key != "timeout_s"}
    found = [invalid(SLEEP, without)]
    for change in (
        {"keep": "everything"},
        {"requests": "drop"},
        {"timeout_s": 0},
        {"no_such_field": 1},
    ):
        found.append(invalid(SLEEP, good | change))
    for path, body in ((SLEEP, good), (WAKE, wake_request(trainer))):
        found += [
            BadRequest(path, body | {"run": "another"}, 409, "other_run"),
            BadRequest(path, body | {"epoch": trainer.epoch + 1}, 409, "stale_epoch"),
            invalid(path, body | {"version": 1}),
        ]
    return found


async def refused_while_receiving(bench: Bench, trainer: TrainerPeer) -> None:
    """Checks that an update is neither disturbed by a sleep nor by a wake."""
    version = trainer.version + 1
    weights = bench.weights(version)
    request = trainer.update_request(version, weights)
    buckets = packed(weights, request["bucket_bytes"])
    await trainer.request_update(request)
    for server in bench.servers:
        await check_refused(server, BadRequest(SLEEP, sleep_request(trainer), 409, "update_in_progress"))
        await check_refused(server, BadRequest(WAKE, wake_request(trainer), 409, "update_in_progress"))
    await trainer.send(buckets)
    await trainer.wait_until_live(version, sum(bucket.nbytes for bucket in buckets), "sleep meanwhile")
    for server in bench.servers:
        await bench.check_content(server, weights, version, "an update, and sleeps that are refused")
