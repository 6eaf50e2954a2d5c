"""What admission makes of long answers, under the simulated clock of extensions/simulator.

python -m benchmarks.admission [--steps 100] [--seeds 8]

Servers and trainer only take time, by the rates below: the figures are the same on any machine. The table is
in docs/benchmarks.md.
"""

from collections.abc import Iterator
from statistics import fmean

from benchmarks.arguments import positive_int
from contracts.support.command_line import command_parser
from extensions.simulator.lengths import lengths_of
from extensions.simulator.measures import CompleteGroup, Measures
from extensions.simulator.rates import Rates
from extensions.simulator.run import SimulatedRun
from extensions.simulator.trainer import Doing
from pipelinerl.config import RunConfig
from pipelinerl.launcher.compose import compose_config

MEAN_TOKENS = 50
MOST_TOKENS = 500
LONG = 3 * MEAN_TOKENS  # tokens from which a response counts as long
LENGTHS = {"constant": f"constant:{MEAN_TOKENS}", "long-tailed": "lognormal:30.33,1"}  # with the same mean
HEAD = (
    "trainer's time / servers'",
    "places",
    "max_lag",
    "lengths",
    "trained tokens/s",
    "trainer idle",
    "lag",
    "stale: short, long",
    "by queueing",
    "tokens an answer: sampled, trained",
)
SLOWER = ((1.7, 16, 4, "long-tailed"), (1.4, 32, 8, "long-tailed"), (1.4, 64, 4, "constant"))
BALANCED = ((1.0, 32, 8, "long-tailed"), (1.0, 32, 4, "long-tailed"), (1.0, 32, 4, "constant"))


def main() -> None:
    parser = command_parser("benchmarks.admission", __doc__)
    parser.add_argument("--steps", type=positive_int, default=100)
    parser.add_argument("--seeds", type=positive_int, default=8)
    options = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |")
    print(f"|{' --- |' * len(HEAD)}")
    for slower, places, max_lag, lengths in SLOWER + BALANCED:
        config = config_of(places, max_lag, options.steps)
        found = list(simulated(config, rates_of(slower, places), LENGTHS[lengths], options.seeds))
        what = [f"{slower:g}", f"{places}", f"{max_lag}", lengths]
        print(f"| {' | '.join([*what, *cells(found, max_lag)])} |", flush=True)


def config_of(places: int, max_lag: int, steps: int) -> RunConfig:
    """Returns the configuration of a run in which a group is dropped only as stale."""
    sizes = ["batch_size=32", "group_size=4", f"max_lag={max_lag}", f"inference.concurrency={places}"]
    tokens = [f"sampling.max_tokens={MOST_TOKENS}", "packing.micro_batch_tokens=512"]
    return compose_config(["plan=true", "filters=[]", f"max_steps={steps}", *sizes, *tokens])


def rates_of(slower: float, places: int) -> Rates:
    """Returns the rates of a trainer that takes `slower` times as long as a server with all slots in use."""
    token_s = 0.01 + 0.0003 * places
    return Rates(
        decode_s=0.0103,
        decode_per_request_s=0.0003,
        train_tokens_per_s=places / (slower * token_s),
        update_s=0.15,
        paused_s=0.05,
    )


def simulated(config: RunConfig, rates: Rates, lengths: str, seeds: int) -> Iterator[Measures]:
    """Yields the measures of one run per seed."""
    for seed in range(seeds):
        seeded = config.model_copy(update={"seed": seed})
        distribution = lengths_of(lengths, MOST_TOKENS)
        yield SimulatedRun(seeded, rates, distribution, success=0.5, prompt_tokens=0).run()


def cells(found: list[Measures], max_lag: int) -> list[str]:
    """Returns the table's cells: means over the runs."""
    groups = [group for run in found for group in run.groups]
    by_queueing = sum(bool(group.dropped) and group.lag < max_lag for group in groups)
    short = share_of_stale(groups, range(LONG))
    long = share_of_stale(groups, range(LONG, MOST_TOKENS + 1))
    sampled = fmean(length for run in found for length in run.sampled_lengths)
    trained = fmean(length for run in found for length in run.trained_lengths)
    return [
        f"{fmean(run.trained_tokens_per_s for run in found):.0f}",
        f"{fmean(run.trainer[Doing.WAITING] for run in found):.1%}",
        f"{fmean(run.lag_mean for run in found):.2f}",
        f"{short:.1%}, {long:.1%}",
        f"{by_queueing} of {len(groups)}",
        f"{sampled:.1f}, {trained:.1f}",
    ]


def share_of_stale(groups: list[CompleteGroup], lengths: range) -> float:
    """Returns the share of stale groups among the groups whose longest response has a length in `lengths`."""
    stale = [bool(group.dropped) for group in groups if max(group.lengths) in lengths]
    return fmean(stale) if stale else 0.0


if __name__ == "__main__":
    main()
