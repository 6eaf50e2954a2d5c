"""A server that stays silent is asked ever more rarely, and as ever once it has answered."""

import pytest

from pipelinerl.training.membership.silent_servers import SilentServers

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 32.0


def test_each_silence_doubles_the_pause_up_to_the_longest():
    servers = SilentServers[str](FIRST_PAUSE_S, LONGEST_PAUSE_S)
    now, pauses = 0.0, []
    for _ in range(8):
        assert servers.is_due("a", now)
        servers.observe(["a", "b"], {"a"}, now)
        asked = now
        while not servers.is_due("a", now):
            now += 0.5
        pauses.append(now - asked)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S == max(pauses)
    assert servers.is_due("b", now)


@pytest.mark.parametrize("answered", [True, False])
def test_an_answer_ends_it_and_so_does_the_need_of_any_server(answered):
    servers = SilentServers[str](FIRST_PAUSE_S, LONGEST_PAUSE_S)
    for now in (0.0, 1.0, 2.0):
        servers.observe(["a"], {"a"}, now)
        servers.observe(["b"], set(), now)  # which changes nothing for one that is not asked
    assert not servers.is_due("a", 3.0)
    if answered:
        servers.observe(["a"], set(), 3.0)
    else:
        servers.forget()
    assert servers.is_due("a", 3.0)
    servers.observe(["a"], {"a"}, 3.0)
    assert servers.is_due("a", 3.0 + FIRST_PAUSE_S)
