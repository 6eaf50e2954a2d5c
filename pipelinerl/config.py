"""The typed, validated configuration: `conf/` composes it, and every process receives it, resolved.

Every field is one sentence. A misspelt key, a wrong type or an impossible combination is refused
before any process starts. Components (`_target_` and their options) are checked by building them.

A default is written once. What suits every run has it here; what a run must decide has none here, and
`conf/config.yaml` gives the demo's value.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from contracts.limits import LONGEST_S, MAX_INTEGER, MAX_TEMPERATURE, MAX_TOKENS_OF_CHOICES, MIN_TEMPERATURE
from contracts.model_shape import ModelShape
from contracts.optimizer import OptimizerSpec
from contracts.support.files import write_atomically
from contracts.support.messages import one_line
from contracts.support.moved import new_path
from contracts.token_fields import TokenField
from pipelinerl.errors import PlanError
from pipelinerl.judging.options import JudgingConfig

CONCURRENCY_AT_FIRST = 64  # requests to a server, before its speed says how many are worth it

NODES = "a run over several nodes is started with executor=ray (docs/cluster.md)"
RESTARTS = "set restarts.servers"
Int = Annotated[int, Field(strict=True, lt=MAX_INTEGER)]  # 128.0 and true are not whole numbers
Seconds = Annotated[float, Field(gt=0, lt=LONGEST_S)]
Text = Annotated[str, Field(min_length=1)]
Bool = Annotated[bool, Field(strict=True)]


# What earlier runs named by other keys.
EXECUTORS = {
    "local": {"_target_": "pipelinerl.launcher.executors.local.LocalExecutor"},
    "ray": {"_target_": "extensions.cluster.on_ray.executor.RayExecutor"},
}
STREAMS = {
    "files": {"_target_": "pipelinerl.streams.of_run.Files"},
    "redis": {"_target_": "extensions.redis_streams.backend.Redis"},
}
TRACKING = "extensions.viewer.observers.Tracking"
VIEWER = "extensions.viewer.observers.Viewer"
DEMO = "extensions.demo.registry.Demo"
MOST_PROCESSES = 1024  # servers of a run, or trainer ranks
MOST_ROLLOUTS = 2**20  # of a step
MOST_ATTEMPTS = 4096  # at a held-out problem


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Component(Section):
    """A class by its path, with its options; Hydra instantiates it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    target: str = Field(alias="_target_", description="Path of the class.")

    @property
    def options(self) -> dict[str, Any]:
        """The keys that only the class knows."""
        return dict(self.model_extra or {})


class ModelConfig(Section):
    path: Text | None = Field(
        None, description="Hugging Face model: a directory, or org/name on the hub; null = see `made_by`."
    )
    shape: ModelShape | None = Field(None, description="Its shape, for a plan where the model is not.")
    made_by: Component | None = Field(
        None, description="What makes a model where `path` names none; null = nothing does."
    )


class SamplingConfig(Section):
    temperature: float = Field(
        1.0, ge=MIN_TEMPERATURE, le=MAX_TEMPERATURE, description="Sampling temperature of training rollouts."
    )
    max_tokens: Int = Field(ge=1, le=MAX_TOKENS_OF_CHOICES, description="Longest completion, in tokens.")
    max_prompt_tokens: Int = Field(
        ge=1, le=MAX_TOKENS_OF_CHOICES, description="Longest prompt expected; refused beyond the context."
    )
    seeded: Bool = Field(
        False, description="Seed every request, so that a run repeats; servers must declare `seed`."
    )
    top_p: float = Field(1.0, description="Must stay 1 in training.")
    top_k: Int = Field(-1, description="Must stay -1 (all tokens) in training.")

    @model_validator(mode="after")
    def _unbiased(self):
        if self.top_p != 1:
            raise ValueError(
                f"sampling.top_p={self.top_p} would bias the importance ratio; train with top_p=1"
            )
        if self.top_k != -1:
            raise ValueError(
                f"sampling.top_k={self.top_k} would bias the importance ratio; train with top_k=-1"
            )
        return self


class RepetitionConfig(Section):
    window: Int = Field(ge=1, description="Longest block of tokens that is looked for.")
    times: Int = Field(ge=2, description="Repetitions of a block, one after the other, that end a rollout.")


class RolloutConfig(Section):
    retries: Int = Field(2, ge=0, description="Further attempts after a failed one, before the member fails.")
    timeout_s: Seconds = Field(description="Longest time one attempt may take, waiting included.")
    segment_tokens: Int | None = Field(
        None, ge=1, description="Tokens after which a rollout goes back to the queue; null = it never does."
    )
    train_segments: Literal["all", "last"] = Field(
        "all", description="Whether the loss has a completion's earlier segments too, or its last alone."
    )
    repetition: RepetitionConfig | None = Field(
        None, description="When a rollout is stopped, at the end of a segment, for repeating itself."
    )

    @model_validator(mode="after")
    def _at_a_segments_end(self):
        if self.repetition and self.segment_tokens is None:
            raise ValueError("rollout.repetition is looked for between segments: set rollout.segment_tokens")
        if self.train_segments == "last" and self.segment_tokens is None:
            raise ValueError("rollout.train_segments=last needs segments: set rollout.segment_tokens")
        return self


class EngineConfig(Section):
    module: str = Field(description="The adapter, run as `python -m MODULE`.")
    python: str | None = Field(None, description="Its interpreter; null = that of `venv`, or else this one.")
    venv: str | None = Field(None, description="Its own environment, a directory next to launch.py.")
    package: str | None = Field(None, description="What must be importable here, where there is no `venv`.")
    model: str | None = Field(None, description="What it serves, if not model.path (given as --model).")
    arguments: dict[str, Any] = Field(default_factory=dict, description="More options: --KEY VALUE.")


class ReferenceConfig(EngineConfig):
    renew_every: Int | None = Field(
        None, ge=1, description="Steps after which the policy becomes the reference; null = never."
    )

    def version_at(self, step: int) -> int:
        """Returns the weight version that scores the rows of a step, floor(step / renew_every) * renew_every.

        It is 0, the start model, if the reference is not renewed.
        """
        return step - step % self.renew_every if self.renew_every else 0


class InferenceConfig(EngineConfig):
    others: dict[str, EngineConfig] = Field(
        default_factory=dict, description="More engines, by any name; servers take them in turn."
    )
    concurrency: Int | None = Field(
        ge=1, description="Requests in flight per server; null = as many as its speed shows to be worth it."
    )
    base_port: Int | None = Field(
        None, ge=1, le=65535, description="First server's port; null takes free ones."
    )
    host: Text | None = Field(
        None, description="Address that the servers bind to; null = their node's, loopback where it is one."
    )
    gpus_per_server: Int = Field(1, ge=1, description="GPUs of one server, where world.gpus allows any.")
    kv_cache: Literal["keep", "recompute"] = Field("keep", description="Old keys/values after an update.")
    receive: Literal["paused", "staged"] = Field("paused", description="Whether a transfer stops generation.")

    @property
    def requests_at_first(self) -> int:
        """The requests that a server gets at a time when the run begins."""
        return self.concurrency or CONCURRENCY_AT_FIRST

    def engine_of(self, server: int) -> EngineConfig:
        engines = [self, *self.others.values()]
        return engines[server % len(engines)]


class OptimizerConfig(OptimizerSpec):
    """The optimizer of a run: what the contract leaves at "none", a run decides."""

    warmup_steps: Int = Field(ge=0, description="Steps of linear warm-up; the first has lr / warmup_steps.")
    decay_steps: Int | None = Field(
        ge=1, description="Steps of linear decay from lr to 0 after it; null = none."
    )


class WeightsConfig(Component):
    """How weights reach the servers. Further keys are the transport's own, in `options`."""

    target: str = Field(
        "pipelinerl.weight_transport.Group", alias="_target_", description="Path of the transport's class."
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="Dtype on the wire.")
    bucket_bytes: Int | None = Field(
        None,
        ge=1,
        description="Largest bucket of a broadcast; null = 8 to 256 MiB, by the size of the weights.",
    )
    master_address: Text | None = Field(
        None,
        description="Where trainer rank 0 hosts the weight group's store, or a transport's services listen; "
        "null = its node's address.",
    )
    rendezvous_timeout_s: Seconds = Field(60, description="Longest wait for a weight group to form.")
    bucket_timeout_s: Seconds = Field(60, description="Longest silence between two buckets.")
    live_timeout_s: Seconds = Field(
        60,
        description="Longest wait for `live` after the last bucket; shared: after the request; relay: at the "
        "first version, without progress.",
    )


class WorldConfig(Section):
    servers: Int = Field(1, ge=1, le=MOST_PROCESSES, description="Inference servers, of all nodes together.")
    servers_min: Int | None = Field(
        None,
        ge=1,
        description="With executor=ray: servers that must have a place for a run to begin; null = all.",
    )
    trainer_ranks: Int = Field(
        1, ge=1, le=MOST_PROCESSES, description="Data-parallel trainer ranks, of all nodes together."
    )
    equal_shares: Bool = Field(
        False,
        description="Whether to refuse a batch that is not the same number of groups for every trainer rank; "
        "rows are filled by tokens, whatever it says.",
    )
    gpus: Int = Field(0, ge=0, description="GPUs of each node to use; 0 runs everything on CPUs.")
    gpu_memory_gib: float = Field(80, gt=0, description="Memory of one of them, which a plan must fit into.")
    threads: Int = Field(
        1, ge=1, le=MOST_PROCESSES, description="CPU threads of each server and trainer rank."
    )
    server_start_timeout_s: Seconds = Field(600, description="Longest wait for a server to be ready.")
    heartbeat_timeout_s: Seconds = Field(
        900, description="Longest silence of a worker that neither works nor waits; then it is ended."
    )
    server_grace_s: float = Field(
        30,
        ge=0,
        description="Wait for the other servers at the start, once one is ready; as long again as that took, "
        "if that is longer.",
    )
    rank_timeout_s: Seconds = Field(1800, description="Longest wait of one trainer rank for another.")
    stop_timeout_s: Seconds = Field(10, description="Time to end by itself before a process is killed.")

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, given: Any) -> Any:
        """Refuses keys of other names, but for the number of nodes of every run that was saved with it."""
        if not isinstance(given, dict):
            return given
        if "server_restarts" in given:
            raise ValueError(f"world.server_restarts={given['server_restarts']}: {RESTARTS}")
        if given.get("nodes", 1) != 1:
            raise ValueError(f"world.nodes={given['nodes']}: {NODES}")
        return {name: value for name, value in given.items() if name not in ("nodes", "node_timeout_s")}


class RestartsConfig(Section):
    """`restarts=0` sets them all: then the first end of a process that the run needs is its own."""

    servers: Int = Field(
        3, ge=0, description="Times that one server is replaced within ten minutes, before it is given up."
    )
    workers: Int = Field(
        3,
        ge=0,
        description="Times that actor, preprocessor and trainer begin again within ten minutes, together.",
    )
    services: Int = Field(
        8,
        ge=0,
        description="Times that one service (reference, judging, origin, the streams' own) is started again "
        "within ten minutes.",
    )

    @model_validator(mode="before")
    @classmethod
    def _all(cls, given: Any) -> Any:
        return dict.fromkeys(cls.model_fields, given) if isinstance(given, int) else given


class CheckpointConfig(Section):
    every: Int | None = Field(20, ge=1, description="Weight versions between checkpoints; null = none.")
    keep: Int = Field(2, ge=1, description="Newest checkpoints that are kept.")


class StopAtConfig(Section):
    success: float = Field(gt=0, le=1, description="Held-out success that each of the evaluations reaches.")
    evaluations: Int = Field(ge=1, description="Evaluations during training that reach it in a row.")


class EvalConfig(Section):
    every: Int | None = Field(ge=1, description="Weight versions between evaluations; null = start and end.")
    problems: Int = Field(ge=1, description="Held-out problems per evaluation, of all sets together.")
    attempts: Int = Field(
        1, ge=1, le=MOST_ATTEMPTS, description="Attempts at each of them, over which success is averaged."
    )
    attempts_of: dict[str, Annotated[Int, Field(ge=1, le=MOST_ATTEMPTS)]] = Field(
        default_factory=dict, description="The same for the problems of one held-out set, by its name."
    )
    concurrency: Int = Field(
        64, ge=1, description="Evaluation requests in flight per server, in addition to training's."
    )
    pinned: Bool = Field(
        False, description="Evaluate on one server that keeps its weights meanwhile, and trains nothing."
    )


class ProbeConfig(Section):
    every: Int = Field(
        10,
        ge=1,
        description="Weight versions between probes of the servers' log-probabilities, after a launch's "
        "first three.",
    )
    prompts: Int = Field(4, ge=1, description="Held-out prompts that each server completes for a probe.")
    max_tokens: Int = Field(8, ge=1, description="Tokens of each completion.")
    timeout_s: Seconds = Field(30, description="Longest wait for one; then the probe goes without it.")


class RunConfig(Section):
    seed: Int = Field(0, ge=0, description="Seed of the problems, their order, and the trainer.")
    run_dir: Text | None = Field(None, description="Where the run writes; null = runs/<time>.")
    resume: Bool | Int = Field(
        False, ge=0, description="Resume run_dir: true = from its newest checkpoint, or of that version."
    )
    plan: Bool = Field(False, description="Print the jobs and some prompts, and start no job.")
    check_parts: Bool = Field(
        True, description="Call parts of your own once before the start, on made-up input."
    )
    check_parts_s: Seconds = Field(30, description="Longest time that this takes for all of them together.")
    schedule: Literal["pipeline", "async", "conventional"] = Field(
        "pipeline", description="When weights go out: in flight, between requests, or with max_lag 0."
    )
    batch_size: Int = Field(ge=1, le=MOST_ROLLOUTS, description="Rollouts per optimizer step.")
    group_size: Int = Field(ge=1, description="Attempts at one problem; 1 only if none are compared.")
    max_lag: Int | None = Field(ge=0, description="Oldest weights a trained token may be sampled by.")
    on_stale: Literal["drop", "mask", "keep"] = Field("drop", description="What to do with older tokens.")
    max_steps: Int = Field(ge=1, description="Optimizer steps of the run, unless stop_at ends it sooner.")
    stop_at: StopAtConfig | None = Field(
        None,
        description="When evaluations (eval.every) say that the run is solved, and it ends; null = never.",
    )
    give_up_after: Int = Field(5000, ge=1, description="Groups dropped in a row that end the run.")
    observers: dict[str, Component] = Field(
        default_factory=dict, description="Processes that watch the run from outside, by any name."
    )
    model: ModelConfig
    sampling: SamplingConfig
    rollout: RolloutConfig
    domain: Component
    judging: JudgingConfig = JudgingConfig()
    inference: InferenceConfig
    trainer: Component
    optimizer: OptimizerConfig
    objective: Component
    regularisers: list[Component] = Field([], description="Terms that are added to the loss.")
    reference: ReferenceConfig | None = Field(
        None, description="A server of its own that scores what is trained on, for KL terms."
    )
    epochs: Int = Field(1, ge=1, description="Updates on each step's rollouts; the first begins at once.")
    reset_optimizer_every: Int | None = Field(
        None, ge=1, description="Steps after which the optimizer's moments are forgotten; null = never."
    )
    advantage: Component
    credit: Literal["trajectory", "turn", "completion"] = Field(
        "trajectory",
        description="Whether a turn has the advantage of the rollout, or of what came after it, or its own "
        "reward.",
    )
    normalisation: Component
    filters: list[Component] = Field(description="Which rollouts of a group stay in the loss.")
    rewards: list[Component] = Field([], description="Terms that are added to the reward of a rollout.")
    token_fields: dict[str, TokenField] = Field(
        default_factory=dict, description="Per-token arrays that the domain gives to the objective, by name."
    )
    health: Component
    packing: Component
    sampler: Component
    streams: Component = Component.model_validate(STREAMS["files"])
    weights: WeightsConfig = WeightsConfig()
    world: WorldConfig = WorldConfig()
    restarts: RestartsConfig = RestartsConfig()
    executor: Component = Component.model_validate(EXECUTORS["local"])
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig
    probe: ProbeConfig = ProbeConfig()

    @model_validator(mode="after")
    def _possible(self):
        if self.batch_size % self.group_size:
            raise ValueError(
                f"batch_size={self.batch_size} is not divisible by group_size={self.group_size}; "
                "a step is made of whole groups"
            )
        groups = self.batch_size // self.group_size
        ranks = self.world.trainer_ranks
        if self.world.equal_shares and groups % ranks:
            raise ValueError(
                f"batch_size={self.batch_size} in groups of {self.group_size} makes {groups}, which {ranks} "
                "trainer ranks cannot share equally; set batch_size to a multiple of "
                f"{self.group_size * ranks}, another world.trainer_ranks, or world.equal_shares=false"
            )
        if self.world.servers_min is not None and self.world.servers_min > self.world.servers:
            raise ValueError(
                f"world.servers_min={self.world.servers_min} is more than world.servers={self.world.servers}"
            )
        if self.eval.pinned and self.world.servers == 1:
            raise ValueError(
                "eval.pinned=true with world.servers=1 would leave none to train with; set world.servers=2"
            )
        if self.eval.pinned and self.eval.every is None:
            raise ValueError("eval.pinned=true is for evaluations during training; set eval.every")
        return self

    @property
    def updates_of_optimizer(self) -> OptimizerSpec:
        """The optimizer spec in optimizer updates.

        The configuration counts steps; each step makes `epochs` updates.
        """
        spec = self.optimizer
        decay = None if spec.decay_steps is None else spec.decay_steps * self.epochs
        steps = {"warmup_steps": spec.warmup_steps * self.epochs, "decay_steps": decay}
        return spec.model_copy(update=steps)

    @property
    def lag_limit(self) -> int | None:
        """`schedule: conventional` generates, then trains: that is `max_lag: 0`."""
        return 0 if self.schedule == "conventional" else self.max_lag

    @property
    def requests_in_flight(self) -> int:
        """The requests for training that all servers together have at once, when the run begins."""
        return self.world.servers * self.inference.requests_at_first

    @property
    def served_model(self) -> str:
        """The name by which requests ask for the model."""
        return self.inference.model or str(self.model.path)

    @property
    def device(self) -> str:
        return "cuda" if self.world.gpus else "cpu"

    @property
    def servers_min(self) -> int:
        """The number of servers that must have a place before the run begins."""
        return self.world.servers_min or self.world.servers


class ResolvedModel(ModelConfig):
    hub: str | None = Field(None, description="Its name on the hub, if it is from there.")


class ResolvedStreams(Component):
    target: str = Field(STREAMS["files"]["_target_"], alias="_target_", description="Path of the class.")
    run: str | None = Field(None, description="The run's name, if streams of several runs lie together.")


class ResolvedRun(RunConfig):
    """What the processes of a run get, and what is saved: what the user wrote, and what the launcher found.

    Made by `launcher/prepare.py`. Directories are absolute, and `judging` has the domain's verifiers too.
    """

    model: ResolvedModel
    streams: ResolvedStreams = ResolvedStreams()

    @classmethod
    def of(cls, config: RunConfig, **found: object) -> Self:
        """Returns the run's configuration, with sections that were found in place of those written."""
        return cls.model_validate(config.model_dump(by_alias=True) | found)


def as_written(saved: dict[str, Any]) -> dict[str, Any]:
    """Returns what a user could have written of a saved configuration, without what was found."""
    model = saved["model"]
    streams = saved["streams"]
    if not (isinstance(model, dict) and isinstance(streams, dict)):  # it is refused as that of a user
        return saved
    written = {key: value for key, value in model.items() if key != "hub"}
    written["path"] = model.get("hub") or model.get("path")
    return saved | {"model": written, "streams": {k: v for k, v in streams.items() if k != "run"}}


def save_config(config: ResolvedRun, path: Path) -> None:
    text = yaml.safe_dump(config.model_dump(by_alias=True, mode="json"), sort_keys=False)
    write_atomically(path, text, mode=0o600)


def load_config(run_dir: Path) -> ResolvedRun:
    """Returns the configuration that the launcher wrote for every process of the run."""
    return ResolvedRun.model_validate(with_moved_keys(saved_config(run_dir)))


def saved_streams(run_dir: Path) -> ResolvedStreams:
    """Returns where the streams of a run are: by its saved configuration, or in files if there is none."""
    saved = with_moved_keys(saved_config(run_dir)) if (run_dir / "config.yaml").exists() else {}
    return ResolvedStreams.model_validate(saved.get("streams") or {})


def saved_config(run_dir: Path) -> dict[str, Any]:
    """Returns the file of the run's configuration. Raises DamagedConfigError where it is none."""
    path = run_dir / "config.yaml"
    try:
        saved = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DamagedConfigError(f"{path} is damaged: {one_line(error)}") from error
    if not isinstance(saved, dict):
        raise DamagedConfigError(f"{path} is damaged: it holds no configuration")
    return saved


class DamagedConfigError(PlanError):
    """The configuration of a run is not as the launcher wrote it."""


def with_moved_keys(saved: dict[str, Any]) -> dict[str, Any]:
    """Returns a saved configuration with its keys and values as they are written now."""
    saved = _with_new_paths(_with_components(saved))
    if "check_parts" not in saved and "domain" in saved:  # when it was saved, null meant the preset's value
        saved = saved | {"domain": _with_presets(saved["domain"])}
    saved = saved | {"weights": _with_target(saved.get("weights") or {})}
    saved = saved | {"model": _with_maker(saved.get("model") or {})}
    world = dict(saved.get("world") or {})
    if "server_restarts" not in world:
        return saved
    restarts = {"servers": world.pop("server_restarts")} | (saved.get("restarts") or {})
    return saved | {"world": world, "restarts": restarts}


def _with_maker(model: Any) -> Any:
    """Returns the section with the maker in place of the name of a demo model, whose files have moved."""
    if not isinstance(model, dict) or "demo" not in model:
        return model
    path = str(model.get("path") or "").replace("/pipelinerl/demo_model/", "/extensions/demo/")
    kept = {key: value for key, value in model.items() if key != "demo"}
    return kept | {"path": path or None, "made_by": {"_target_": DEMO, "name": model["demo"]}}


def _with_target(weights: Any) -> Any:
    """Returns the section with the class of a transport in place of its name, and its own options alone."""
    if not isinstance(weights, dict) or "transport" not in weights:
        return weights
    transport = str(weights["transport"])
    of_stores = {
        "group": (),
        "shared": ("directory",),
        "relay": ("directory", "deltas", "relays", "origin_port", "poll_s", "keep", "max_behind"),
    }
    foreign = {*of_stores["relay"]} - {*of_stores.get(transport, ())}
    options = {key: value for key, value in weights.items() if key not in {*foreign, "transport"}}
    name = "pipelinerl.weight_transport.Group"
    if transport != "group":
        name = f"extensions.stored_weights.transport.{transport.capitalize()}"
    return {"_target_": name} | options


def _with_components(saved: dict[str, Any]) -> dict[str, Any]:
    """Returns a saved configuration with the executor, the streams and the observers as components."""
    for section, targets in (("executor", EXECUTORS), ("streams", STREAMS)):
        given = saved.get(section)
        if isinstance(given, dict) and "backend" in given:
            options = {key: value for key, value in given.items() if key != "backend"}
            saved = saved | {section: targets.get(str(given["backend"]), {}) | options}
    trackers = [*(saved.get("trackers") or []), *(["tensorboard"] if saved.get("tensorboard") else [])]
    observers = {name: {"_target_": TRACKING, "tracker": name} for name in trackers}
    if saved.get("view"):
        observers["viewer"] = {"_target_": VIEWER}
    kept = {key: value for key, value in saved.items() if key not in ("view", "trackers", "tensorboard")}
    return {"observers": observers} | kept


def _with_new_paths(part: Any) -> Any:
    """Returns a part of a saved configuration with the paths that its classes have now."""
    if isinstance(part, list):
        return [_with_new_paths(item) for item in part]
    if not isinstance(part, dict):
        return part
    values = {key: _with_new_paths(value) for key, value in part.items()}
    named = [key for key in ("_target_", "made_by") if isinstance(values.get(key), str)]
    return values | {key: new_path(values[key]) or values[key] for key in named}


def _with_presets(part: Any) -> Any:
    """Returns the options of a domain, and of those inside it, with "preset" in place of null."""
    if not isinstance(part, dict):
        return part
    values = {key: _with_presets(value) for key, value in part.items()}
    of_preset = ("prompt_pattern", "system_prompt", "difficulty_keys") if part.get("presets") else ()
    return values | {key: "preset" for key in of_preset if key in part and part[key] is None}
