"""Runs attempts, each an episode of the environment."""

import asyncio
import json
import logging
from typing import Any, TextIO

import verifiers.v1 as vf
from verifiers.v1.clients import EvalClient
from verifiers.v1.interception import server as interception
from verifiers.v1.utils.loaders import load_environment
from verifiers_worker.ends import end_of, words_of
from verifiers_worker.tasks import taskset_of

POLICY = "POLICY_KEY"  # in place of a variable's name: the client is of the run's endpoint
LONGEST_LINE = 1 << 30  # bytes


class AttemptClient(EvalClient):
    """A client for all attempts, which sends each request with the key of its attempt.

    A client for each attempt would stay open until the program ends. keys: by the id of a trace.
    """

    keys: dict[str, str] = {}  # noqa: RUF012 (of all clients)

    def _headers(self, dialect: Any, incoming: Any, session_id: str | None) -> Any:
        headers = super()._headers(dialect, incoming, session_id)
        headers.update(dialect.auth_headers(self.keys.get(session_id, "none")))
        return headers


def client_of(config: Any) -> vf.Client:
    return AttemptClient(config) if config.api_key_var == POLICY else vf.resolve_client(config)


interception.resolve_client = client_of


class Server:
    """Serves attempts at an environment, of which the model has one seat."""

    def __init__(self, config: vf.EnvConfig, seat: str, given: dict[str, Any], output: TextIO):
        self.env = load_environment(config)
        self._seat = seat
        self._tasksets = {split: taskset_of(config, given, split).config for split in ("train", "heldout")}
        self._success_at = given["success_at"]
        self._output = output
        self._running: dict[int, asyncio.Task[None]] = {}

    async def serve(self, lines: TextIO) -> None:
        """Serves until the lines of the protocol end."""
        reader = asyncio.StreamReader(LONGEST_LINE)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), lines)
        async with self.env.serving():
            while line := await reader.readline():
                given = json.loads(line)
                number = given["id"]
                if "task" in given:
                    attempt = self._running[number] = asyncio.create_task(self._attempt(given))
                    attempt.add_done_callback(lambda _, number=number: self._running.pop(number))
                elif number in self._running:
                    self._running[number].cancel()

    async def _attempt(self, line: dict[str, Any]) -> None:
        try:
            said = json.dumps({"id": line["id"], **await self._said(line)}, allow_nan=False)
        except (Exception, SystemExit) as error:
            logging.exception("an attempt failed")
            said = json.dumps({"id": line["id"], "error": words_of(type(error).__name__, error)})
        print(said, file=self._output, flush=True)

    async def _said(self, line: dict[str, Any]) -> dict[str, Any]:
        """Returns what is said of an attempt."""
        client = vf.EvalClientConfig(base_url=line["base_url"], api_key_var=POLICY)
        minted = []

        def mint(trace: vf.Trace) -> None:
            AttemptClient.keys[trace.id] = line["api_key"]
            minted.append(trace.id)

        (slot,) = self.env.slots(self._task(line["task"]["task"]))
        try:
            episode = await self.env.run_slot(slot, vf.ModelContext("policy", client), on_trace=mint)
        finally:
            for trace_id in minted:
                del AttemptClient.keys[trace_id]
        return end_of(episode, self._seat, self._success_at)

    def _task(self, task: dict[str, Any]) -> vf.Task:
        kind = type(self.env.taskset).task_type()
        return kind(kind.data_type().model_validate(task["data"]), self._tasksets[task["split"]].task)
