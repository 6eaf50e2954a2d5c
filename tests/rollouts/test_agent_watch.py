"""The alarms of agents: programs that fail, and answers that nobody reads."""

import pytest

from pipelinerl.health.rules import Alarm
from pipelinerl.rollouts.agent_watch import FEWEST, AgentWatch

GOOD = {"agent_crashed": 0.0, "endpoint_tokens": 100.0, "endpoint_requests": 10.0}


@pytest.mark.parametrize(
    ("bad", "few", "many", "alarm"),
    [
        ({"agent_crashed": 1.0}, 5, 6, Alarm.AGENTS_FAIL),
        ({"endpoint_unread": 50.0}, 2, 3, Alarm.ANSWERS_UNREAD),
        ({"endpoint_called_off": 5.0}, 2, 3, Alarm.ANSWERS_UNREAD),
    ],
)
def test_an_alarm_is_raised_once_above_its_share(bad, few, many, alarm):
    def raised(count: int) -> list[Alarm]:
        watch = AgentWatch()
        attempts = [GOOD | bad] * count + [GOOD] * (2 * FEWEST - count)
        return [each for attempt in [*attempts[:FEWEST], GOOD] for each in watch.observe(attempt)]

    assert raised(few) == [] and raised(many) == [alarm]


def test_the_first_refused_field_raises_an_alarm_at_once():
    watch = AgentWatch()
    attempts = [GOOD, GOOD | {"endpoint_unsupported": 1.0}, GOOD | {"endpoint_unsupported": 1.0}]
    assert [list(watch.observe(attempt)) for attempt in attempts] == [[], [Alarm.FIELD_REFUSED], []]


def test_attempts_without_a_program_raise_none():
    watch = AgentWatch()
    assert [alarm for _ in range(FEWEST) for alarm in watch.observe({"endpoint_unread": 9.0})] == []
