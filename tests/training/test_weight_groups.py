"""What the servers are asked when a weight group is formed."""

from types import SimpleNamespace

import pytest

from contracts.inference import ContractInfo
from contracts.nccl import LEAVING_S
from pipelinerl.clients.server_control import LEAVE_TIMEOUT_S, ContractRefusalError
from pipelinerl.training.membership.blame import blame_for_joining
from pipelinerl.training.membership.servers import Servers
from pipelinerl.training.membership.weight_groups import WeightGroups
from tests.inference_adapters.servers import contract, ready_servers
from tests.limits import HANG_S
from tests.pipeline.launched import Launcher


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
    requests = groups._requests(
        {str(i): info(version) for i, version in enumerate(versions)}, timeout_s=HANG_S
    )
    assert [request.wire().get("probe", False) for request in requests.values()] == [probed, probed]


@pytest.mark.parametrize(("backend", "in_a_group"), [("nccl", [False, True]), ("gloo", [True, True])])
def test_servers_that_offer_it_leave_an_nccl_group_before_rank_0(backend, in_a_group):
    """The servers are real. Their group is gloo's, because NCCL needs GPUs."""
    found: list[bool] = []
    with ready_servers(2) as both:
        servers = Servers(Launcher(*(server.url for server in both)).servers(), token=None)
        infos, _ = servers.ask(servers.all, lambda server: server.contract())
        older = infos[servers.all[1]]
        older.capabilities.remove("leave_group")
        groups = WeightGroups("run", servers, "127.0.0.1", "gloo")
        assert groups.form(infos, HANG_S) == {}
        close = groups.group.close

        def look_and_close() -> None:
            found.extend(contract(server.url)["group"] is not None for server in both)
            close()

        groups.group.close = look_and_close
        groups._backend = backend
        groups.leave()
        groups._backend = "gloo"
        assert groups.form(infos, HANG_S) == {}
        groups.leave()
        servers.close()
    assert found == in_a_group


def test_servers_and_an_abort_that_never_answer_delay_the_next_group_by_five_seconds_at_most():
    assert LEAVE_TIMEOUT_S + LEAVING_S < 5


def test_a_server_that_says_it_joined_a_group_that_did_not_form_is_to_blame():
    async def says_that_it_joined(request) -> None:
        pass

    async def waited(request) -> None:
        raise ContractRefusalError("b", 504, "rendezvous_timeout", "nobody came")

    servers = Servers(Launcher("http://a", "http://b").servers(), token=None)
    liar, waiting = servers.all
    liar.init_process_group = says_that_it_joined
    waiting.init_process_group = waited
    groups = WeightGroups("run", servers, "127.0.0.1", "gloo")
    failures = groups.form({liar: info(2), waiting: info(2)}, timeout_s=0.5)
    assert blame_for_joining(failures).servers == {liar}
    servers.close()
