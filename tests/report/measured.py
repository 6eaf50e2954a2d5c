"""Metrics lines of runs with one bottleneck, for tests."""

from pipelinerl.report.measurements import MetricLines

STEP_S = 2.0


def lines_of_run(
    steps: int = 30,
    wait_s: float = 0.1,
    publish_s: float = 0.1,
    paused_s: float = 0.0,
    phases: dict[str, float] | None = None,
    judging: float | None = None,
    reference_s: float | None = None,
    useful: float = 0.9,
    others: dict[str, float] | None = None,
    **places: float,
) -> MetricLines:
    """Returns the lines of a run.

    places: shares of the actor's line. reference_s, useful, others: values of each step, which learns
    otherwise.
    """
    kept = MetricLines(20)
    for step in range(1, steps + 1):
        for process, line in lines_of_step(
            step, wait_s, publish_s, paused_s, phases, judging, reference_s, useful, places, others
        ):
            kept.observe(process, line)
    return kept


def lines_of_step(
    step, wait_s, publish_s, paused_s, phases, judging, reference_s, useful, places, others=None
):
    at = 1000.0 + STEP_S * step
    yield "actor", {"time": at - 0.3, "step": step, "places_s": STEP_S, **places}
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
