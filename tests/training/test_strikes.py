"""How servers that break weight groups are left out: counted over versions, with every kind of blame."""

import pytest

from pipelinerl.training.membership.blame import Blame
from pipelinerl.training.membership.strikes import ServerStrikes


def groups_formed(strikes, servers, bad, version, sharp):
    """Publishes one version. Returns the groups that it took, the last of which holds no bad server.

    sharp: whether the bad ones of a group are known, or every member of it is a suspect.
    """
    groups = []
    strikes.begin(version)
    while group := strikes.choose(servers):
        groups.append(group)
        broken = bad & set(group)
        if not broken:
            strikes.succeeded(group)
            return groups
        suspects = broken if sharp else set(group)
        strikes.failed(Blame(frozenset(suspects), certain=sharp or len(suspects) == 1))
    return groups


@pytest.mark.parametrize("sharp", [True, False], ids=["who broke it is known", "all of a group are suspects"])
@pytest.mark.parametrize("bad", [{0}, {5}, {2, 3}], ids=str)
def test_a_server_that_fails_every_update_costs_ever_fewer_groups(bad, sharp):
    servers = list(range(8))
    strikes = ServerStrikes()
    formed = []
    for version in range(64):
        groups = groups_formed(strikes, servers, bad, version, sharp)
        assert groups and not bad & set(groups[-1])
        formed.append(len(groups))
    extra = [count - 1 for count in formed]
    assert extra[0] <= (1 if sharp else 2 + 2 * (len(bad) - 1))
    assert max(extra[1:]) <= 2
    assert sum(extra) <= 7 * len(bad) + (0 if sharp else 8)
    assert sum(extra[32:]) <= 2 * len(bad)
    assert set(groups[-1]) == set(servers) - bad  # and nobody else is left out for long


def test_a_version_tries_each_alone_before_it_gives_up():
    servers = list(range(8))
    groups = groups_formed(ServerStrikes(), servers, set(servers), version=0, sharp=False)
    assert {len(group) for group in groups} == {8, 4, 2, 1}
    assert {group[0] for group in groups if len(group) == 1} == set(servers)
    assert len(groups) < 40


def test_a_suspect_comes_back_beside_those_that_are_trusted_and_answers_for_the_group():
    strikes = ServerStrikes()
    strikes.begin(0)
    strikes.choose("abc")
    strikes.failed(Blame(frozenset("ab"), certain=False))
    assert strikes.choose("abc") == ["c"]
    strikes.succeeded("c")
    strikes.begin(1)
    assert strikes.choose("abc") == ["a", "c"]
    assert strikes.failed(Blame(frozenset("ac"), certain=False)) == {"a"}


def test_a_server_that_rests_is_taken_when_there_is_no_other():
    strikes = ServerStrikes()
    for version in range(4):
        strikes.begin(version)
        strikes.choose("ab")
        strikes.failed(Blame(frozenset("b"), certain=True))
    strikes.begin(5)
    assert strikes.choose("ab") == ["a"]
    assert strikes.choose("b") == ["b"]


def test_strikes_are_cleared_by_as_many_successes_as_the_rest_was_long():
    strikes = ServerStrikes()
    for version in (0, 1):
        strikes.begin(version)
        strikes.choose("ab")
        strikes.failed(Blame(frozenset("a"), certain=True))
    for version in range(3, 7):
        strikes.begin(version)
        assert strikes.choose("ab") == ["a", "b"]
        strikes.succeeded("ab")
    strikes.begin(7)
    strikes.failed(Blame(frozenset("a"), certain=True))
    strikes.begin(8)  # a first strike again
    assert strikes.choose("ab") == ["a", "b"]
