"""The typed configuration of a run: composed from `conf/`, resolved by the launcher, read by every process.

Misspelt keys, wrong types and impossible combinations are refused before any process starts. Components
(`_target_` and their options) are checked by building them. Keys without a default here are decided by each
run; `conf/config.yaml` gives the demo's values.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from contracts.limits import LONGEST_S, MAX_INTEGER, MAX_TEMPERATURE, MAX_TOKENS_OF_CHOICES, MIN_TEMPERATURE
from contracts.model_shape import ModelShape
from contracts.optimizer import OptimizerSpec
from contracts.support.files import write_atomically
from contracts.support.messages import one_line
from contracts.token_fields import TokenField
from pipelinerl.errors import PlanError
from pipelinerl.former_keys import with_moved_keys
from pipelinerl.judging.options import JudgingConfig

SERVER_URL = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+")
CONCURRENCY_AT_FIRST = 64  # requests to a server, before its concurrency is adapted to its speed

NODES = "a run over several nodes is started with executor=ray (docs/cluster.md)"
RESTARTS = "set restarts.servers"
Int = Annotated[int, Field(strict=True, lt=MAX_INTEGER)]  # 128.0 and true are not whole numbers
Seconds = Annotated[float, Field(gt=0, lt=LONGEST_S)]
Text = Annotated[str, Field(min_length=1)]
Bool = Annotated[bool, Field(strict=True)]

FILES = "pipelinerl.streams.of_run.Files"
LOCAL = "pipelinerl.launcher.executors.local.LocalExecutor"
WORDS = ("pipeline", "async", "conventional")  # schedules that are no class
MOST_PROCESSES = 1024  # servers of a run, or trainer ranks
MOST_ROLLOUTS = 2**20  # of a step
MOST_ATTEMPTS = 4096  # for each held-out problem


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Component(Section):
    """The path of a class and the options of its constructor; Hydra instantiates it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    target: str = Field(alias="_target_", description="Path of the class.")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ModelConfig(Section):
    path: Text | None = Field(None, description="A directory, or org/name on the Hub; null = see `made_by`.")
    shape: ModelShape | None = Field(None, description="Shape of a model that is not on this machine.")
    made_by: Component | None = Field(None, description="Makes the model if `path` is null.")
    template: dict[str, Any] | None = Field(None, description="Options of the chat template.")
    old_thoughts: Literal["as_template", "keep"] = Field(
        "as_template", description="If the template strips a thought before a user's message."
    )
    renderer: Text = Field("auto", description="auto, template, or the name of a renderer.")
    renderers: Component | None = Field(None, description="Finds a renderer by its name.")


class SamplingConfig(Section):
    temperature: float = Field(
        1.0, ge=MIN_TEMPERATURE, le=MAX_TEMPERATURE, description="Temperature of training rollouts."
    )
    max_tokens: Int = Field(ge=1, le=MAX_TOKENS_OF_CHOICES, description="Longest completion.")
    max_prompt_tokens: Int = Field(
        ge=1, le=MAX_TOKENS_OF_CHOICES, description="Longest expected prompt; must fit the model's context."
    )
    seeded: Bool = Field(False, description="Seed every request; servers must declare `seed`.")
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
    window: Int = Field(ge=1, description="Longest block of tokens that is searched for.")
    times: Int = Field(ge=2, description="Consecutive repetitions of a block that end a rollout.")


class RolloutConfig(Section):
    retries: Int = Field(2, ge=0, description="Retries of a failed attempt before the rollout fails.")
    timeout_s: Seconds = Field(
        description="Longest time of an attempt; waits for judgements, or without any server, do not count."
    )
    segment_tokens: Int | None = Field(
        None, ge=1, description="Tokens of a request, after which a rollout queues again; null = all."
    )
    train_segments: Literal["all", "last"] = Field(
        "all", description="Segments of a completion that enter the loss."
    )
    repetition: RepetitionConfig | None = Field(
        None, description="Repetition that ends a rollout, checked after each segment."
    )

    @model_validator(mode="after")
    def _at_a_segments_end(self):
        if self.repetition and self.segment_tokens is None:
            raise ValueError("rollout.repetition is looked for between segments: set rollout.segment_tokens")
        if self.train_segments == "last" and self.segment_tokens is None:
            raise ValueError("rollout.train_segments=last needs segments: set rollout.segment_tokens")
        return self


class EngineConfig(Section):
    module: str | None = Field(None, description="Adapter module, run as `python -m MODULE`.")
    command: list[Text] | None = Field(
        None,
        description="A program in place of a module, with {host}, {port} and {model}.",
    )
    python: str | None = Field(
        None, description="Interpreter of the adapter; null = that of `venv`, or else the launcher's."
    )
    venv: str | None = Field(None, description="Virtual environment of the engine, next to launch.py.")
    package: str | None = Field(None, description="Package that the engine needs.")
    model: str | None = Field(None, description="Name of the model of a server without --model.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="More options: --KEY VALUE.")


class ReferenceConfig(EngineConfig):
    renew_every: Int | None = Field(
        None, ge=1, description="Steps after which the policy becomes the reference; null = never."
    )

    def version_at(self, step: int) -> int:
        """Returns the weight version that scores the rows of a step: floor(step / renew_every) * renew_every.

        Returns 0, the start model, if the reference is not renewed.
        """
        return step - step % self.renew_every if self.renew_every else 0


class InferenceConfig(EngineConfig):
    others: dict[str, EngineConfig] = Field(
        default_factory=dict, description="More engines, by any name, used in turn."
    )
    urls: list[Text] = Field(
        default_factory=list, description="Servers that run already; the launcher starts any others."
    )
    models: dict[Text, Text] = Field(default_factory=dict, description="Names of the models at `urls`.")
    concurrency: Int | None = Field(ge=1, description="Requests per server; null = adapted to its speed.")
    base_port: Int | None = Field(None, ge=1, le=65535, description="First server's port; null = free ports.")
    host: Text | None = Field(None, description="Address of servers; null = their node's, or loopback.")
    gpus_per_server: Int = Field(1, ge=1, description="GPUs of one server; ignored if world.gpus is 0.")
    kv_cache: Literal["keep", "recompute"] = Field("keep", description="Old keys/values after an update.")
    receive: Literal["paused", "staged"] = Field(
        "paused",
        description="When generation pauses: during a weight transfer, or while staged weights load.",
    )

    @property
    def requests_at_first(self) -> int:
        """The concurrency of a server at the start of the run."""
        return self.concurrency or CONCURRENCY_AT_FIRST

    def url_of(self, server: int) -> str | None:
        """Returns the URL of a server that runs already, or None if it is started."""
        return self.urls[server] if server < len(self.urls) else None

    @field_validator("urls")
    @classmethod
    def _urls(cls, urls: list[str]) -> list[str]:
        for url in urls:
            if not SERVER_URL.fullmatch(url):
                raise ValueError(f"{url} is none like http://HOST:PORT, without a path")
        if len({*urls}) < len(urls):
            raise ValueError("each server is named once")
        return urls

    def engine_of(self, server: int) -> EngineConfig:
        engines = [self, *self.others.values()]
        return engines[server % len(engines)]

    def used_engines(self, servers: int) -> dict[str, EngineConfig]:
        """Returns the engines of `servers` servers that are started, by their keys in the configuration."""
        named = {"inference": self} | {f"inference.others.{name}": one for name, one in self.others.items()}
        used = {server % len(named) for server in range(len(self.urls), servers)}
        return {name: one for place, (name, one) in enumerate(named.items()) if place in used}


class OptimizerConfig(OptimizerSpec):
    """The contract's optimizer, with a schedule that the run must choose."""

    warmup_steps: Int = Field(ge=0, description="Steps of linear warm-up.")
    decay_steps: Int | None = Field(
        ge=1, description="Steps of linear decay to 0 after the warm-up; null = none."
    )


class WeightsConfig(Component):
    """The weight transport from the trainer to the servers. Further keys are options of its class."""

    target: str = Field(
        "pipelinerl.weight_transport.Group", alias="_target_", description="Path of the transport's class."
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="Dtype on the wire.")
    bucket_bytes: Int | None = Field(
        None,
        ge=1,
        description="Largest bucket of a broadcast; null = 8 to 256 MiB.",
    )
    master_address: Text | None = Field(
        None,
        description="Address at trainer rank 0 for the transport; null = its node's.",
    )
    rendezvous_timeout_s: Seconds = Field(60, description="Longest wait for a weight group to form.")
    bucket_timeout_s: Seconds = Field(60, description="Longest time between two buckets.")
    live_timeout_s: Seconds = Field(
        60,
        description="Longest wait for `live` after the last bucket; shared: after the request; relay: "
        "without progress at the first version.",
    )


class WorldConfig(Section):
    servers: Int = Field(1, ge=1, le=MOST_PROCESSES, description="Inference servers on all nodes.")
    servers_min: Int | None = Field(
        None, ge=1, description="Servers that a run on Ray needs to start; null = all."
    )
    trainer_ranks: Int = Field(1, ge=1, le=MOST_PROCESSES, description="Trainer ranks on all nodes.")
    equal_shares: Bool = Field(
        False,
        description="Refuse unequal numbers of groups on trainer ranks.",
    )
    gpus: Int = Field(0, ge=0, description="GPUs of each node to use; 0 runs everything on CPUs.")
    share_gpus: Bool = Field(False, description="Put a server and a trainer rank on each GPU.")
    gpu_memory_gib: float = Field(80, gt=0, description="Memory of one GPU, for the plan.")
    threads: Int = Field(
        1, ge=1, le=MOST_PROCESSES, description="CPU threads of each server and trainer rank."
    )
    server_start_timeout_s: Seconds = Field(600, description="Longest wait for a server to be ready.")
    heartbeat_timeout_s: Seconds = Field(900, description="Longest silence of a worker before it is killed.")
    server_grace_s: float = Field(
        30,
        ge=0,
        description="Least wait for the other servers after the first one is ready.",
    )
    rank_timeout_s: Seconds = Field(1800, description="Longest wait of one trainer rank for another.")
    stop_timeout_s: Seconds = Field(10, description="Time between SIGTERM and SIGKILL for a process.")

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, given: Any) -> Any:
        """Refuses removed keys, and drops `nodes=1` and `node_timeout_s` of saved configurations."""
        if not isinstance(given, dict):
            return given
        if "server_restarts" in given:
            raise ValueError(f"world.server_restarts={given['server_restarts']}: {RESTARTS}")
        if given.get("nodes", 1) != 1:
            raise ValueError(f"world.nodes={given['nodes']}: {NODES}")
        return {name: value for name, value in given.items() if name not in ("nodes", "node_timeout_s")}


class RestartsConfig(Section):
    """Limits of restarts in ten minutes.

    `restarts=0` sets all three limits to 0. The run then fails when any required process exits.
    """

    servers: Int = Field(3, ge=0, description="Replacements of one server in ten minutes.")
    workers: Int = Field(
        3, ge=0, description="Joint restarts of actor, preprocessor and trainer in ten minutes."
    )
    services: Int = Field(
        8,
        ge=0,
        description="Restarts of one service, such as judging, in ten minutes.",
    )

    @model_validator(mode="before")
    @classmethod
    def _all(cls, given: Any) -> Any:
        return dict.fromkeys(cls.model_fields, given) if isinstance(given, int) else given


class CheckpointConfig(Section):
    every: Int | None = Field(20, ge=1, description="Weight versions between checkpoints; null = none.")
    keep: Int = Field(2, ge=1, description="Newest checkpoints to keep.")


class StopAtConfig(Section):
    success: float = Field(gt=0, le=1, description="Held-out success that an evaluation must reach.")
    evaluations: Int = Field(ge=1, description="Consecutive evaluations during training that must reach it.")


class EvalConfig(Section):
    every: Int | None = Field(ge=1, description="Weight versions between evaluations; null = start and end.")
    problems: Int = Field(ge=1, description="Held-out problems per evaluation, over all sets.")
    attempts: Int = Field(1, ge=1, le=MOST_ATTEMPTS, description="Attempts per problem.")
    attempts_of: dict[str, Annotated[Int, Field(ge=1, le=MOST_ATTEMPTS)] | None] = Field(
        default_factory=dict, description="The same for single sets, by name; null takes one out."
    )
    concurrency: Int = Field(64, ge=1, description="Evaluation requests per server, beside training's.")
    pinned: Bool = Field(False, description="Evaluate on one server that meanwhile keeps its weights.")


class ProbeConfig(Section):
    every: Int = Field(
        10,
        ge=1,
        description="Weight versions between probes of log-probabilities, after the first three probes.",
    )
    prompts: Int = Field(4, ge=1, description="Held-out prompts of a probe.")
    max_tokens: Int = Field(8, ge=1, description="Tokens of each completion.")
    timeout_s: Seconds = Field(30, description="Longest wait for a completion.")


class RunConfig(Section):
    seed: Int = Field(0, ge=0, description="Seed of the problems, their order, and the trainer.")
    run_dir: Text | None = Field(None, description="The run's files; null = runs/<time>.")
    note: Text | None = Field(None, description="A note on the run, for lists of runs.")
    resume: Bool | Int = Field(
        False, ge=0, description="Resume run_dir from its newest checkpoint (true), or from version N."
    )
    plan: Bool = Field(False, description="Print the jobs and some prompts only.")
    check_parts: Bool = Field(True, description="Call each of your components once before the start.")
    check_parts_s: Seconds = Field(30, description="Longest time of this check.")
    schedule: Literal["pipeline", "async", "conventional"] | Component = Field(
        "pipeline",
        description="When weights go out: in flight, between requests, in turns with training; or a class.",
    )
    batch_size: Int = Field(ge=1, le=MOST_ROLLOUTS, description="Rollouts per training step.")
    group_size: Int = Field(ge=1, description="Rollouts per problem; 1 only if they are not compared.")
    max_lag: Int | None = Field(
        ge=0, description="Largest lag of a trained token, in weight versions; null = unlimited."
    )
    on_stale: Literal["drop", "mask", "keep"] = Field(
        "drop", description="Treatment of older tokens; drop leaves out their group."
    )
    max_steps: Int = Field(ge=1, description="Training steps, unless stop_at ends the run earlier.")
    stop_at: StopAtConfig | None = Field(None, description="Evaluations that end the run; null = none.")
    give_up_after: Int = Field(5000, ge=1, description="Consecutive dropped groups that fail the run.")
    observers: dict[str, Component] = Field(
        default_factory=dict, description="Processes that only watch the run, by any name."
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
    regularisers: list[Component] = Field([], description="Terms added to the loss.")
    reference: ReferenceConfig | None = Field(
        None, description="Server that scores the trained tokens by the reference model, for KL terms."
    )
    epochs: Int = Field(1, ge=1, description="Updates on each step's rollouts.")
    reset_optimizer_every: Int | None = Field(
        None, ge=1, description="Steps between resets of the optimizer's moments; null = never."
    )
    advantage: Component
    credit: Literal["trajectory", "turn", "completion"] = Field(
        "trajectory",
        description="Reward that a turn's advantage comes from.",
    )
    normalisation: Component
    estimate: Component | None = Field(None, description="Estimates the time of a run on GPUs.")
    filters: list[Component] = Field(description="Select the rollouts of a group for the loss.")
    rewards: list[Component] = Field([], description="Terms added to a rollout's reward.")
    token_fields: dict[str, TokenField] = Field(
        default_factory=dict, description="Per-token arrays from the domain, by name."
    )
    health: Component
    packing: Component
    sampler: Component
    streams: Component = Component.model_validate({"_target_": FILES})
    weights: WeightsConfig = WeightsConfig()
    world: WorldConfig = WorldConfig()
    restarts: RestartsConfig = RestartsConfig()
    executor: Component = Component.model_validate({"_target_": LOCAL})
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig
    probe: ProbeConfig = ProbeConfig()

    @field_validator("schedule", mode="before")
    @classmethod
    def _word(cls, value: object) -> object:
        if isinstance(value, str) and value not in WORDS:
            raise ValueError(
                f"none of {', '.join(WORDS)}; in a file, `- override /schedule: {value}` chooses"
            )
        if isinstance(value, dict) and "_target_" not in value:
            raise ValueError("has keys only with a class, as schedule=colocated names one")
        return value

    @model_validator(mode="before")
    @classmethod
    def _count_urls(cls, given: Any) -> Any:
        """Makes `world.servers` as many as `inference.urls`, unless more are wanted."""
        if not isinstance(given, dict):
            return given
        inference = given.get("inference")
        urls = inference.get("urls") if isinstance(inference, dict) else None
        world = given.get("world")
        if not urls or not isinstance(world, dict) or not isinstance(world.get("servers", 1), int):
            return given
        servers = world.get("servers", 1)
        if 1 < servers < len(urls):
            raise ValueError(f"world.servers={servers} leaves some of {len(urls)} inference.urls out")
        return given | {"world": world | {"servers": max(servers, len(urls))}}

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
        if self.shares_gpus:
            self._check_shared_gpus()
        if self.eval.pinned and self.world.servers == 1:
            raise ValueError(
                "eval.pinned=true with world.servers=1 would leave none to train with; set world.servers=2"
            )
        if self.eval.pinned and self.eval.every is None:
            raise ValueError("eval.pinned=true is for evaluations during training; set eval.every")
        return self

    def _check_shared_gpus(self) -> None:
        if self.inference.gpus_per_server > 1:
            raise ValueError(
                "world.share_gpus=true needs servers of one GPU, and inference.gpus_per_server="
                f"{self.inference.gpus_per_server}; set it to 1"
            )
        if self.inference.others:
            raise ValueError(
                "world.share_gpus=true: a plan adds one engine; choose one, such as inference=vllm"
            )
        if self.reference and self.world.servers < self.world.trainer_ranks:
            raise ValueError(
                "world.share_gpus=true would put the reference server beside a trainer rank; set "
                f"world.servers={self.world.trainer_ranks}"
            )

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
    def takes_turns(self) -> bool:
        """Whether servers sleep while the trainer trains (`pipelinerl/turns.py`)."""
        return isinstance(self.schedule, Component)

    @property
    def schedule_name(self) -> str:
        """The schedule in one word: of a class its name, in lower case."""
        return self.schedule.target.rpartition(".")[2].lower() if self.takes_turns else self.schedule

    @property
    def lag_limit(self) -> int | None:
        """`max_lag`, or 0 with `schedule: conventional`, which trains only between generations."""
        return 0 if self.schedule == "conventional" else self.max_lag

    @property
    def requests_in_flight(self) -> int:
        """The training requests in flight on all servers at the start of the run."""
        return self.world.servers * self.inference.requests_at_first

    @property
    def served_model(self) -> str:
        """The model's name in requests."""
        return self.inference.model or str(self.model.path)

    @property
    def device(self) -> str:
        return "cuda" if self.world.gpus else "cpu"

    @property
    def shares_gpus(self) -> bool:
        """Whether a server and a trainer rank have one GPU."""
        return self.world.share_gpus and self.device == "cuda"

    @property
    def servers_min(self) -> int:
        """The number of servers that must be placed before the run starts."""
        return self.world.servers_min or self.world.servers


class ResolvedModel(ModelConfig):
    hub: str | None = Field(None, description="Repository id on the Hugging Face Hub, if it is from there.")
    found_shape: ModelShape | None = Field(None, description="Shape of the model that is here, if known.")


class ResolvedStreams(Component):
    target: str = Field(FILES, alias="_target_", description="Path of the class.")
    run: str | None = Field(None, description="Name of the run in storage that several runs share.")


class ResolvedRun(RunConfig):
    """The user's configuration with the launcher's additions, as it is saved and passed to every process.

    `launcher/prepare.py` creates it. Directories are absolute, and `judging` includes the domain's verifiers.
    """

    model: ResolvedModel
    streams: ResolvedStreams = ResolvedStreams()

    @classmethod
    def of(cls, config: RunConfig, **found: object) -> Self:
        """Returns the configuration with the sections in `found` replaced."""
        return cls.model_validate(config.model_dump(by_alias=True) | found)


def as_written(saved: dict[str, Any]) -> dict[str, Any]:
    """Returns a saved configuration without the launcher's additions, as `RunConfig` accepts it."""
    model = saved["model"]
    streams = saved["streams"]
    if not (isinstance(model, dict) and isinstance(streams, dict)):  # RunConfig refuses it
        return saved
    written = {key: value for key, value in model.items() if key not in ("hub", "found_shape")}
    written["path"] = model.get("hub") or model.get("path")
    return saved | {"model": written, "streams": {k: v for k, v in streams.items() if k != "run"}}


def save_config(config: ResolvedRun, path: Path) -> None:
    text = yaml.safe_dump(config.model_dump(by_alias=True, mode="json"), sort_keys=False)
    write_atomically(path, text, mode=0o600)


def load_config(run_dir: Path) -> ResolvedRun:
    """Returns the saved configuration of a run, as `ResolvedRun`."""
    return ResolvedRun.model_validate(with_moved_keys(saved_config(run_dir)))


def saved_streams(run_dir: Path) -> ResolvedStreams:
    """Returns the `streams` section of a run's saved configuration, or the default without one."""
    saved = with_moved_keys(saved_config(run_dir)) if (run_dir / "config.yaml").exists() else {}
    return ResolvedStreams.model_validate(saved.get("streams") or {})


def saved_config(run_dir: Path) -> dict[str, Any]:
    """Returns the content of a run's config.yaml. Raises DamagedConfigError if it is not a mapping."""
    path = run_dir / "config.yaml"
    try:
        saved = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DamagedConfigError(f"{path} is damaged: {one_line(error)}") from error
    if not isinstance(saved, dict):
        raise DamagedConfigError(f"{path} is damaged: it holds no configuration")
    return saved


class DamagedConfigError(PlanError):
    """The saved configuration of a run cannot be read."""
