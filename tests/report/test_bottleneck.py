"""What bounds a run: by tables, and never by the trainer's waiting alone."""

from dataclasses import replace

import pytest

from pipelinerl.report.bottleneck import Finding, bottleneck
from pipelinerl.report.bottleneck_watch import HOLDS, BottleneckWatch
from pipelinerl.report.measurements import MetricLines

STEP_S = 2.0


def lines_of_step(step: int, wait_s=0.1, publish_s=0.1, paused_s=0.0, useful=0.9, **values):
    """Yields the processes and metrics lines of a step, which learns in the rest of its time.

    values: phases of the publication, further times of the trainer (`others`), `judging` and `reference_s`;
    the rest is of the actor's line.
    """
    others, phases, judging, reference_s = (
        values.pop(name, None) for name in ("others", "phases", "judging", "reference_s")
    )
    at = 1000.0 + STEP_S * step
    yield "actor", {"time": at - 0.3, "step": step, "places_s": STEP_S, **values}
    counts = {"groups": 16.0 * step, "sampled_tokens": 1000.0 * step, "useful_tokens": 1000.0 * useful * step}
    if reference_s is not None:
        counts["reference_s"] = reference_s * step
    yield "preprocessor", {"time": at - 0.2, "step": step, **counts}
    if judging is not None:
        yield "judging", {"time": at - 0.2, "step": step, "busy_share": judging}
    times = {"wait_s": wait_s, "publish_s": publish_s} | (others or {})
    times |= {"step_s": STEP_S, "learn_s": STEP_S - sum(times.values())}
    yield "trainer", {"time": at, "step": step, **times}
    of_phases = {f"publish_{name}_s": seconds for name, seconds in (phases or {}).items()}
    yield "trainer", {"time": at + 0.1, "step": step, "publish_paused_s": paused_s, **of_phases}


def lines_of_run(steps: int = 30, **values) -> MetricLines:
    """Returns the lines of a run whose steps are alike."""
    kept = MetricLines(20)
    for step in range(1, steps + 1):
        for process, line in lines_of_step(step, **values):
            kept.observe(process, line)
    return kept


WAITING = {"wait_s": 1.0}
PHASES = {"open": 0.02, "gather": 0.05, "send": 0.5, "confirm": 0.03}
RUNS = {
    Finding.GENERATION: {**WAITING, "places_busy": 0.98},
    Finding.TRAINING: {"wait_s": 0.05, "places_busy": 0.4, "blocked_queue": 0.6},
    Finding.UPDATE: {"publish_s": 1.2, "phases": PHASES, "places_busy": 0.9},
    Finding.VERIFIER: {**WAITING, "places_busy": 0.3, "outside_requests": 0.8, "blocked_lag": 0.5},
    Finding.AGENT: {**WAITING, "places_busy": 0.3, "outside_requests": 0.8, "agent_share": 0.7},
    Finding.REFERENCE: {**WAITING, "places_busy": 0.3, "reference_s": 4.0, "blocked_lag": 0.7},
    Finding.LAG: {**WAITING, "places_busy": 0.4, "blocked_lag": 0.6},
    Finding.BALANCED: {"wait_s": 0.2, "places_busy": 0.9},
    Finding.UNCLEAR: {**WAITING, "places_busy": 0.5},
    Finding.QUIESCING: {"others": {"quiesce_s": 1.2}, "places_busy": 0.4, "blocked_gate": 0.6},
    Finding.TURNS: {"others": {"quiesce_s": 1.0, "sleep_s": 0.2}, "places_busy": 0.4, "blocked_gate": 0.6},
    Finding.CHECKPOINT: {"others": {"save_s": 1.6}, "places_busy": 0.4, "blocked_lag": 0.6},
}


@pytest.mark.parametrize("finding", RUNS)
def test_each_is_found_from_its_measurements(finding):
    assert bottleneck(lines_of_run(**RUNS[finding]).measured()).finding == finding


@pytest.mark.parametrize(
    ("otherwise", "finding"),
    [
        ({**WAITING, "places_busy": 0.5}, Finding.UNCLEAR),  # it waits, and nothing says for whom
        ({**WAITING, "places_busy": 0.4, "blocked_queue": 0.6}, Finding.UNCLEAR),  # and rollouts for it
        (  # nobody stood still for it
            {"publish_s": 0.6, "phases": PHASES, "wait_s": 1.2, "places_busy": 0.5},
            Finding.UNCLEAR,
        ),
        ({"wait_s": 0.1, "places_busy": 0.5, "blocked_lag": 0.1}, Finding.BALANCED),
        (  # most of the time goes to learning
            {"publish_s": 0.6, "phases": PHASES, "places_busy": 0.4, "blocked_lag": 0.6},
            Finding.TRAINING,
        ),
        ({"wait_s": 0.1, "others": {"probe_s": 1.6}, "blocked_lag": 0.6}, Finding.BALANCED),
    ],
)
def test_one_measurement_alone_blames_nobody(otherwise, finding):
    assert bottleneck(lines_of_run(**otherwise).measured()).finding == finding


def test_an_update_for_which_the_servers_stand_still_bounds_also_a_trainer_that_waits():
    run = {"publish_s": 0.6, "paused_s": 0.6, "phases": PHASES, **WAITING, "places_busy": 0.95}
    assert bottleneck(lines_of_run(**run).measured()).finding == Finding.UPDATE


def test_busy_workers_that_judge_are_the_verifiers_second_measurement():
    run = {**WAITING, "places_busy": 0.3, "outside_requests": 0.2, "blocked_lag": 0.5}
    assert bottleneck(lines_of_run(**run, judging=0.95).measured()).finding == Finding.VERIFIER
    assert bottleneck(lines_of_run(**run, judging=0.5).measured()).finding == Finding.LAG
    busy = bottleneck(lines_of_run(**RUNS[Finding.VERIFIER], judging=0.95).measured())
    idle = bottleneck(lines_of_run(**RUNS[Finding.VERIFIER], judging=0.2).measured())
    assert busy.advice.startswith("more judging.workers") and idle.advice.startswith("quicker tools")


def test_problems_come_before_servers_where_most_tokens_are_for_nothing():
    measured = lines_of_run(**RUNS[Finding.GENERATION], useful=0.07).measured()
    wasteful = bottleneck(replace(measured, solved=0.6, hopeless=0.1))
    assert "7% of the tokens sampled came into the loss" in wasteful.why
    assert "neither always solved nor never" in wasteful.advice
    filtered = bottleneck(replace(measured, solved=0.1, hopeless=0.1))
    assert "why groups are dropped" in filtered.advice
    assert "world.servers" in bottleneck(lines_of_run(**RUNS[Finding.GENERATION]).measured()).advice


def test_only_the_last_steps_count():
    kept = lines_of_run(steps=100, **RUNS[Finding.GENERATION])
    for step in range(101, 121):
        for process, line in lines_of_step(step, wait_s=0.05, places_busy=0.4, blocked_lag=0.6):
            kept.observe(process, line)
    measured = kept.measured()
    assert (measured.steps, measured.busy) == (20, pytest.approx(0.4))
    assert measured.useful == pytest.approx(0.9)
    assert bottleneck(measured).finding == Finding.TRAINING


def test_counts_begin_anew_with_their_process():
    kept = MetricLines(20)
    for at, sampled in ((1, 100.0), (2, 200.0), (3, 50.0), (4, 150.0)):
        counts = {"sampled_tokens": sampled, "useful_tokens": sampled / 2}
        kept.observe("preprocessor", {"time": at - 0.5, "step": at, **counts})
        kept.observe("actor", {"time": at - 0.5, "step": at, "places_s": 1.0, "places_busy": 1.0})
        kept.observe("trainer", {"time": float(at), "step": at, "step_s": 1.0, "wait_s": None})
    assert kept.measured().useful == pytest.approx(0.5)


def test_a_finding_is_said_once_it_holds_and_again_only_when_another_does():
    watch = BottleneckWatch()

    def run(first: int, steps: int, **run: object) -> list[str]:
        for step in range(first, first + steps):
            for process, line in lines_of_step(step, **run):
                watch.observe(process, line)
        said = [*watch.unsaid]
        watch.unsaid.clear()
        return said

    assert run(1, HOLDS + 1, **RUNS[Finding.GENERATION]) == []  # not before three steps have closed
    assert [s.split(":")[1] for s in run(HOLDS + 2, 20, **RUNS[Finding.GENERATION])] == [" generation bound"]
    assert run(40, 20, **RUNS[Finding.GENERATION]) == []
    (said,) = run(60, 60, **RUNS[Finding.TRAINING])
    assert "training bound" in said
