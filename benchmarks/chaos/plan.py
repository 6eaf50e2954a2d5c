"""The run and the faults that a seed draws. Nothing is started here."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Pair = Literal["scripted", "real", "smollm2", "agents"]
Executor = Literal["local", "ray"]
Weights = Literal["group", "relay", "shared"]
Action = Literal[
    "kill",
    "kill node",
    "stop",
    "close port",
    "corrupt",
    "break off",
    "slow",
    "fill disk",
    "truncate log",
    "cut tail",
]

MARK = "PIPELINERL_CHAOS_RUN"  # names the run in the environment of all its processes
SHORTEST_STOP_S = 1.0
MOST_STEPS = 4  # steps between a recovery and the next fault
LONGEST_DELAY_S = 0.5  # after these steps
DISK_FULL_S = (1.0, 5.0)
CORRUPT_S = (0.5, 4.0)
RELAYS = 2
RELAY_FAULT_S = (2.0, 10.0)  # of a relay that is gone, lies, breaks answers off, or is slow
RELAY_ACTIONS: tuple[Action, ...] = ("kill", "stop", "corrupt", "break off", "slow")
JUDGED = ("domain._target_=tests.judging.domains.SlowlyJudged", "+domain.seconds=0.001")
UNJUDGED = ("+domain._target_=tests.scripted_domain.ScriptedDomain",)
KL = "regularisers=[{_target_: pipelinerl.objectives.kl.KlToReference, coefficient: 0.01}]"
SMALL = {
    "scripted": ("trainer=scripted", "sampling.max_tokens=4", "batch_size=32", "eval.problems=16"),
    "real": (
        "inference=transformers",
        "trainer=fsdp",
        "sampling.max_tokens=8",
        "batch_size=16",
        "eval.problems=8",
    ),
    "smollm2": ("+exp=smollm2", "batch_size=16", "eval.problems=8"),
    "agents": ("+exp=agent_guessing", "batch_size=16", "eval.problems=8"),
}
PATIENT = ("restarts=1000",)
QUICK = (
    "weights.rendezvous_timeout_s=10",
    "weights.bucket_timeout_s=10",
    "weights.live_timeout_s=10",
    "world.rank_timeout_s=20",
    "world.server_start_timeout_s=40",
    "world.server_grace_s=10",
    "world.stop_timeout_s=5",
    "rollout.timeout_s=20",
)


@dataclass(frozen=True)
class Fault:
    """One fault.

    target: a job, a relay, or `redis`, `launcher` or `disk`. after_steps, delay_s: time since the recovery
    from the previous fault. seconds: its duration, if it ends by itself. phase: of a run that takes turns, in
    which it is injected.
    """

    action: Action
    target: str
    after_steps: int
    delay_s: float
    seconds: float = 0.0
    phase: str | None = None

    @property
    def kind(self) -> str:
        return f"{self.action} {self.target.partition('-')[0]}"

    @property
    def ends_launch(self) -> bool:
        """Whether the fault may end the launcher, which is then launched again with `resume=true`."""
        return self.target in ("launcher", "disk")


@dataclass(frozen=True)
class Shape:
    """The kind of a run."""

    pair: Pair
    servers: int
    ranks: int
    streams: str
    schedule: str
    max_lag: int
    reference: bool
    judging: bool
    checkpoint_every: int
    heartbeat_s: int
    executor: Executor = "local"
    weights: Weights = "group"

    @property
    def relays(self) -> int:
        """The number of relays that the run's weights pass through."""
        return RELAYS if self.weights == "relay" else 0

    @property
    def lag_limit(self) -> int:
        return 0 if self.schedule == "conventional" else self.max_lag


@dataclass(frozen=True)
class Plan:
    seed: int
    shape: Shape
    faults: tuple[Fault, ...]


def draw_plan(
    seed: int,
    number: int,
    pair: Pair,
    longest_stop_s: float,
    executor: Executor = "local",
    weights: Weights = "group",
    schedule: str | None = None,
) -> Plan:
    """Returns the run of a seed, with `number` faults. Every kind occurs once before any kind repeats.

    schedule: None draws one.
    """
    chance = random.Random(seed)
    shape = draw_shape(chance, pair)
    if executor == "ray":
        shape = replace(shape, executor="ray", streams="redis")
    shape = replace(shape, weights=weights)
    if weights == "relay" and shape.schedule == "async":
        shape = replace(shape, schedule="pipeline")  # the two exclude each other
    if schedule == "colocated":
        shape = replace(shape, schedule=schedule, weights="shared", reference=False)  # it needs both
    elif schedule:
        shape = replace(shape, schedule=schedule)
    faults = draw_faults(chance, shape, longest_stop_s)
    drawn = [next(faults) for _ in range(number)]
    if shape.schedule == "colocated":
        drawn = [replace(fault, phase=chance.choice(["train", "generate"])) for fault in drawn]
    return Plan(seed, shape, tuple(drawn))


def draw_shape(chance: random.Random, pair: Pair) -> Shape:
    return Shape(
        pair=pair,
        servers=chance.randint(1, 3 if pair == "scripted" else 2),
        ranks=chance.randint(1, 2),
        streams=chance.choice(["files", "redis"]),
        schedule=chance.choice(["pipeline", "async", "conventional"]),
        max_lag=chance.choice([0, 1, 4]),
        reference=chance.random() < 0.5,
        judging=pair in ("real", "agents") or chance.random() < 0.5,
        checkpoint_every=chance.choice([1, 3, 10, 20]),
        heartbeat_s=chance.randint(5, 20),
    )


def draw_faults(chance: random.Random, shape: Shape, longest_stop_s: float) -> Iterator[Fault]:
    """Yields an endless sequence of faults."""
    while True:
        kinds = kinds_of(shape)
        chance.shuffle(kinds)
        for action, role in kinds:
            yield Fault(
                action,
                _member(chance, shape, role),
                after_steps=chance.randint(0, MOST_STEPS),
                delay_s=round(chance.uniform(0, LONGEST_DELAY_S), 3),
                seconds=round(_duration(chance, action, role, longest_stop_s), 1),
            )


def kinds_of(shape: Shape) -> list[tuple[Action, str]]:
    """Returns every action on every role that is possible in a run of this shape."""
    roles = ["server", "actor", "preprocessor", "trainer", "launcher"]
    roles += ["reference"] if shape.reference else []
    roles += ["judging"] if shape.judging else []
    roles += ["redis"] if shape.streams == "redis" else []
    roles += ["origin"] if shape.weights == "relay" else []
    kinds: list[tuple[Action, str]] = [("kill", role) for role in roles]
    kinds += [("stop", role) for role in roles]
    kinds += [("fill disk", "disk"), ("truncate log", "actor")]
    if shape.pair == "scripted":
        kinds += [("close port", "server"), ("corrupt", "server")]
    if shape.executor == "ray":
        kinds.append(("kill node", "server"))
    if shape.streams == "files":
        kinds.append(("cut tail", "launcher"))
    if shape.weights == "relay":
        kinds += [(action, "relay") for action in RELAY_ACTIONS]
    return kinds


def settings_of(plan: Plan) -> list[str]:
    """Returns the settings of launch.py, without the run directory, the number of steps and the relays."""
    shape = plan.shape
    quick = [] if shape.pair == "smollm2" else QUICK
    settings = [*SMALL[shape.pair], *PATIENT, *quick, "group_size=4", "filters=[]", "stop_at=null"]
    settings += [f"seed={plan.seed}", f"weights={shape.weights}"]
    settings += [f"world.servers={shape.servers}", f"world.trainer_ranks={shape.ranks}"]
    settings += [f"streams={shape.streams}", f"schedule={shape.schedule}", f"max_lag={shape.lag_limit}"]
    settings += [f"checkpoint.every={shape.checkpoint_every}"]
    if shape.executor == "ray":
        settings += ["executor=ray", f"executor.forward_env=[{MARK}]"]
    settings += [f"world.heartbeat_timeout_s={shape.heartbeat_s}"]
    if shape.pair == "scripted":
        settings += ["inference=scripted", "inference.module=benchmarks.chaos.frail_server", "~domain"]
        settings += [f"+{setting.lstrip('+')}" for setting in (JUDGED if shape.judging else UNJUDGED)]
    if shape.reference:
        settings += [f"reference={'scripted' if shape.pair == 'scripted' else 'transformers'}", KL]
    return settings


def _member(chance: random.Random, shape: Shape, role: str) -> str:
    numbers = {"server": shape.servers, "trainer": shape.ranks, "relay": shape.relays}
    return f"{role}-{chance.randrange(numbers[role])}" if role in numbers else role


def _duration(chance: random.Random, action: Action, role: str, longest_stop_s: float) -> float:
    """Returns the duration of a fault in seconds.

    A stop is as likely to last one to three seconds as ten to thirty.
    """
    if action == "stop":
        return math.exp(chance.uniform(math.log(SHORTEST_STOP_S), math.log(longest_stop_s)))
    if role == "relay":
        return chance.uniform(*RELAY_FAULT_S)
    spans: dict[Action, Sequence[float]] = {"fill disk": DISK_FULL_S, "corrupt": CORRUPT_S}
    return chance.uniform(*spans[action]) if action in spans else 0.0
