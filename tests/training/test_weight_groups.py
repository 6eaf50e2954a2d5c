"""What the servers are asked when a weight group is formed."""

import asyncio
from types import SimpleNamespace

import pytest

from contracts.inference import ContractInfo
from pipelinerl.clients.server_control import ContractRefusalError
from pipelinerl.training.weight_groups import WeightGroups, blame_for_joining


def info(version: int) -> ContractInfo:
    return ContractInfo(
        contract=version,
        engine="e",
        engine_version="1",
        model="m",
        backends=["gloo", "nccl"],
        accepts_dtypes=["float32"],
        kv_cache=["keep"],
        capabilities=[],
        run=None,
        group=None,
        weights={"version": 0, "state": "live"},
        process={"resident_bytes": 0, "running": 0, "waiting": 0},
    )


@pytest.mark.parametrize(
    ("backend", "versions", "probed"),
    [("nccl", (2, 2), True), ("nccl", (2, 1), False), ("gloo", (2, 2), False)],
)
def test_nccl_is_probed_when_every_member_knows_probes(backend, versions, probed):
    groups = WeightGroups("run", None, "127.0.0.1", backend)
    groups._store = SimpleNamespace(address="127.0.0.1", port=1)
    requests = groups._requests({str(i): info(version) for i, version in enumerate(versions)}, timeout_s=1)
    assert [request.wire().get("probe", False) for request in requests.values()] == [probed, probed]


class Member:
    def __init__(self, url: str, failure: Exception | None = None):
        self.url = url
        self._failure = failure

    async def init_process_group(self, request) -> None:
        if self._failure:
            raise self._failure


def test_a_server_that_says_it_joined_a_group_that_did_not_form_is_to_blame():
    waited = ContractRefusalError("b", 504, "rendezvous_timeout", "nobody came")
    liar, waiting = Member("a"), Member("b", waited)
    groups = WeightGroups("run", SimpleNamespace(run=asyncio.run), "127.0.0.1", "gloo")
    failures = groups.form({liar: info(2), waiting: info(2)}, timeout_s=0.5)
    assert blame_for_joining(failures).servers == {liar}
