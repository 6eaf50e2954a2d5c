"""Weight channels are named by the command line: its errors, and a server without channels."""

import pytest

from contracts.channel import InitWeightChannelRequest
from contracts.errors import ContractError, ErrorCode
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.serve import arguments
from inference_adapters.weight_updates import WeightUpdates
from tests.inference_adapters.servers import CHANNELS

JOIN = InitWeightChannelRequest(
    run="r",
    epoch=1,
    kind="relay",
    sources=["http://127.0.0.1:9/"],
    public_keys=[{"id": "k", "ed25519": "0" * 64}],
)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--weight-channels", "nowhere.Channels"], "nowhere.Channels cannot be imported: No module named"),
        (["--weight-channels", "contracts.Nothing"], "contracts.Nothing cannot be imported: module"),
        (["--weight-channels", "Channels"], "Channels cannot be imported"),
        (["--weight-channels", "pathlib.Path"], "pathlib.Path is no class of weight channels"),
        (
            ["--weight-sources=file:///x"],
            "--weight-sources=file:///x is of weight channels: name their class",
        ),
    ],
)
def test_what_names_no_channels_is_one_line(given, says, capsys):
    with pytest.raises(SystemExit, match="2"):
        arguments("a server", given)
    told = capsys.readouterr().err
    assert says in told and "--weight-channels" in told and told.count("\n") == 1


def test_the_class_adds_its_options():
    given = [*CHANNELS, "--weight-sources", "http://a.example/"]
    args = arguments("a server", given).parse_args(given)
    assert [source.host for source in args.weight_sources] == ["a.example"]


@pytest.mark.asyncio
async def test_a_server_without_channels_declares_and_joins_none():
    updates = WeightUpdates(ScriptedEngine())
    await updates.start(0)
    assert not {"relay", "shared", "delta"}.intersection(updates.contract().capabilities)
    with pytest.raises(ContractError) as refused:
        await updates.membership.join_channel(JOIN)
    assert refused.value.code is ErrorCode.UNSUPPORTED_CHANNEL
