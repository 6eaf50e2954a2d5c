"""Runs episodes of an environment of `verifiers`, by the Python that has the package.

`worker.py CONFIG` serves attempts, each a line of JSON as `extensions.agents.programs.serving` says.
`worker.py CONFIG --tasks` prints the tasks of both splits, a line each. CONFIG is JSON, with the options of
`Verifiers`. This file imports nothing of the project, which is not installed beside `verifiers`.
"""

import asyncio
import importlib.metadata
import json
import logging
import math
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

VERSION = "0.4.0"
SPLITS = ("train", "heldout")
MOST_METRICS = 64
LARGEST = 1e6
OF_OTHERS = {"SandboxError", "TunnelError", "InterceptionError"}  # faults that no model can cause


def require_version() -> None:
    try:
        found = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found != VERSION:
        sys.exit(f"it has verifiers {found}, and verifiers {VERSION} is needed: make verifiers-env")


require_version()

import verifiers.v1 as vf  # noqa: E402
from verifiers.v1.clients import EvalClient  # noqa: E402
from verifiers.v1.configs.agent import agent_config_fields  # noqa: E402
from verifiers.v1.interception import server as interception  # noqa: E402
from verifiers.v1.utils.compile import resolve_runtime_config, validate_pairing  # noqa: E402
from verifiers.v1.utils.loaders import (  # noqa: E402
    env_config_type,
    load_environment,
    load_harness,
    load_taskset,
    taskset_class,
    taskset_config_type,
)

keys: dict[str, str] = {}  # of the attempts, by the id of a trace


class AttemptClient(EvalClient):
    """A client for all attempts, which sends each request with the key of its attempt.

    A client for each attempt would stay open until the program ends.
    """

    def _headers(self, dialect: Any, incoming: Any, session_id: str | None) -> Any:
        headers = super()._headers(dialect, incoming, session_id)
        headers.update(dialect.auth_headers(keys.get(session_id, "none")))
        return headers


def client_of(config: Any) -> vf.Client:
    return AttemptClient(config) if config.api_key_var == POLICY else vf.resolve_client(config)


POLICY = "POLICY_KEY"  # marks the endpoint of the run; no variable has this name
interception.resolve_client = client_of


# --- the environment ------------------------------------------------------------------------------


def config_of(given: dict[str, Any], env: dict[str, str]) -> tuple[vf.EnvConfig, str]:
    """Returns the configuration, and the name of the seat that the model has.

    env: the variables of the worker. Raises ValueError for what cannot be trained.
    """
    given = dict(given)
    taskset = given.get("taskset") or {}
    if not taskset.get("id"):
        raise ValueError("it names no taskset: set domain.env.taskset.id")
    kind = env_config_type(taskset["id"], given.get("id") or "")
    seats = [name for name, field in kind.model_fields.items() if isinstance(field.default, vf.AgentConfig)]
    unplaced = [name for name in seats if not (given.get(name) or {}).get("runtime")]
    for name in unplaced:
        if kind.model_fields[name].default.runtime.type == "prime":  # the package's default
            given[name] = {**(given.get(name) or {}), "runtime": {"type": "subprocess"}}
    config = kind.model_validate(given)
    for name, seat in agent_config_fields(config).items():
        check_seat(config, name, seat, name in unplaced, env)
    ours = [name for name, seat in agent_config_fields(config).items() if seat.client is None]
    if len(ours) != 1:
        raise ValueError(
            f"one agent is trained, and {len(ours)} have no client of their own ({', '.join(ours)}); "
            "give others one: domain.env.NAME.client"
        )
    if config.retries != vf.RetryConfig():
        raise ValueError("domain.env.retries would train what was given up; the run tries again by itself")
    return config, ours[0]


def check_seat(
    config: vf.EnvConfig, name: str, seat: vf.AgentConfig, is_unplaced: bool, env: dict[str, str]
) -> None:
    """Raises ValueError for an agent that cannot be trained, or whose parts do not fit."""
    where = f"domain.env.{name}"
    harness = load_harness(config.agent_harnesses()[name])
    if is_unplaced and seat.runtime.type == "subprocess" and harness.EXECUTES_CODE:
        raise ValueError(
            f"the harness {harness.config.id} runs the model's commands: say where, with "
            f'{where}.runtime.type=docker, or subprocess for this machine; the harness "null" only chats'
        )
    if seat.runtime.type == "prime" and "PRIME_API_KEY" not in env:
        raise ValueError(f"{where}.runtime.type=prime needs domain.agent.env.PRIME_API_KEY")
    if seat.retries != vf.RetryConfig():
        raise ValueError(f"{where}.retries would train what was given up; the run tries again by itself")
    kind = taskset_class(config.taskset.id)
    tools = [*kind.toolsets(config.taskset), *kind.task_type().toolsets(config.taskset.task)]
    validate_pairing(harness, kind.task_type(), seat.runtime, tools=tools)


def taskset_of(config: vf.EnvConfig, split: dict[str, Any]) -> vf.Taskset:
    """Returns the tasks of a split: the environment's taskset with changes, of which some are selected."""
    fields = {**config.taskset.model_dump(), **(split.get("taskset") or {})}
    taskset = load_taskset(taskset_config_type(config.taskset.id).model_validate(fields))
    return taskset.select(vf.SelectConfig.model_validate(split.get("select") or {}))


def listed(config: vf.EnvConfig, seat: str, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the tasks. A training task with the content of a held-out one is left out."""
    data_type = taskset_class(config.taskset.id).task_type().data_type()
    unwritten = [name for name, field in data_type.model_fields.items() if field.exclude]
    if unwritten:
        raise ValueError(f"{data_type.__name__} leaves out {', '.join(unwritten)} when it is written")
    held_out = set()
    for split in reversed(SPLITS):
        taskset = taskset_of(config, given[split])
        if not taskset.bounded:
            raise ValueError(f"its tasks do not end: set domain.{split}.select.limit")
        for task in taskset:
            resolve_runtime_config(agent_config_fields(config)[seat].runtime, task)
            data = task.data.model_dump(mode="json", exclude_none=True)
            content = json.dumps({**data, "idx": None}, sort_keys=True)
            if split == "heldout":
                held_out.add(content)
            is_new = split == "heldout" or content not in held_out
            yield (
                {"split": split, "data": data, "messages": opening_of(task.data)}
                if is_new
                else {"split": None}
            )


def opening_of(data: vf.TaskData) -> list[dict[str, str]]:
    """Returns the messages that open a task, as far as its data says."""
    prompt = data.prompt if isinstance(data.prompt, list) else [vf.UserMessage(content=data.prompt or "")]
    messages = [{"role": message.role, "content": text_of(message.content)} for message in prompt]
    return [{"role": "system", "content": data.system_prompt}, *messages] if data.system_prompt else messages


def text_of(content: Any) -> str:
    return (
        content if isinstance(content, str) else "".join(getattr(part, "text", "") for part in content or [])
    )


# --- episodes -------------------------------------------------------------------------------------


class Server:
    """Runs attempts. success_at: the reward from which an attempt is a success."""

    def __init__(self, config: vf.EnvConfig, seat: str, given: dict[str, Any], output: TextIO):
        self.env = load_environment(config)
        self._seat = seat
        self._tasksets = {split: taskset_of(config, given[split]).config for split in SPLITS}
        self._success_at = given["success_at"]
        self._output = output
        self._running: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        async with self.env.serving():
            while line := await asyncio.to_thread(sys.stdin.readline):
                given = json.loads(line)
                number = given["id"]
                if "task" in given:
                    attempt = self._running[number] = asyncio.create_task(self._attempt(given))
                    attempt.add_done_callback(lambda _, number=number: self._running.pop(number))
                elif number in self._running:
                    self._running[number].cancel()

    async def _attempt(self, line: dict[str, Any]) -> None:
        try:
            said = await self._said(line)
        except Exception as error:
            logging.exception("an attempt failed")
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"id": line["id"], **said}), file=self._output, flush=True)

    async def _said(self, line: dict[str, Any]) -> dict[str, Any]:
        """Returns what is said of an attempt."""
        client = vf.EvalClientConfig(base_url=line["base_url"], api_key_var=POLICY)
        minted = []

        def mint(trace: vf.Trace) -> None:
            keys[trace.id] = line["api_key"]
            minted.append(trace.id)

        (slot,) = self.env.slots(self._task(line["task"]["task"]))
        try:
            episode = await self.env.run_slot(slot, vf.ModelContext("policy", client), on_trace=mint)
        finally:
            for trace_id in minted:
                del keys[trace_id]
        return self._end_of(episode)

    def _task(self, task: dict[str, Any]) -> vf.Task:
        kind = type(self.env.taskset).task_type()
        return kind(kind.data_type().model_validate(task["data"]), self._tasksets[task["split"]].task)

    def _end_of(self, episode: vf.Episode) -> dict[str, Any]:
        traces = [
            trace for trace in episode.traces if trace.agent.name == self._seat and trace.agent.trainable
        ]
        if len(traces) > 1:
            raise ValueError(f"the episode has {len(traces)} traces of {self._seat}, and one can be trained")
        if episode.is_timeout:
            return {"result": {"truncated": True}}
        error = next(
            (said.last_error for said in [episode, *episode.traces] if not said.ok and said.last_error), None
        )
        if error:
            words = f"{error.type}: {error.message}"
            return {"lost": words} if is_of_others(error) else {"error": words}
        if not traces:
            return {"error": f"the episode has no trace of {self._seat}"}
        return {"result": self._result(traces[0], any(trace.is_timeout for trace in episode.traces))}

    def _result(self, trace: vf.Trace, is_timeout: bool) -> dict[str, Any]:
        rewards = {f"reward_{name}": reward.value for name, reward in trace.rewards.items() if reward}
        metrics = [(name, value) for name, value in {**trace.metrics, **rewards}.items() if is_metric(value)]
        return {
            "reward": trace.reward,
            "success": trace.reward >= self._success_at,
            "metrics": dict(metrics[:MOST_METRICS]),
            "truncated": is_timeout or (trace.stop_condition or "").startswith("max_"),
        }


def is_metric(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and abs(value) <= LARGEST


def is_of_others(error: vf.Error) -> bool:
    """Returns whether an error says nothing of the model: a sandbox or a provider failed."""
    status = error.status_code or 0
    return error.type in OF_OTHERS or (error.type == "ProviderError" and (status >= 500 or status == 429))


def main() -> None:
    """Serves, or prints the tasks. A configuration that cannot be used ends it with one line."""
    given = json.loads(sys.argv[1])
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an environment prints is no answer
    logging.basicConfig(stream=sys.stderr)
    sys.path[:0] = given["path"]
    try:
        config, seat = config_of(given["env"], given["variables"])
        if "--tasks" in sys.argv:
            for task in listed(config, seat, given):
                print(json.dumps(task), file=output)
            output.close()
            return
        server = Server(config, seat, given, output)
    except (ValueError, TypeError, ImportError, AttributeError) as error:
        sys.exit(" ".join(str(error).split()))
    asyncio.run(server.serve())


if __name__ == "__main__":
    main()
