"""The volunteer's own inference server: an adapter on loopback, which ends with the volunteer."""

import asyncio
import contextlib
import logging
import os
import secrets
from base64 import b64decode
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec

from contracts.channel import ChannelUpdateRequest, InitWeightChannelRequest
from contracts.commitments import FORMAT
from contracts.inference import ContractInfo
from contracts.support.die_with_parent import die_with_parent
from contracts.support.locations import Location
from contracts.support.messages import printable
from contracts.support.ports import ReservedPort
from contracts.support.token import TOKEN_VARIABLE
from extensions.volunteers.messages import Made, Run, Task, Weights
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.server_control import NO_ANSWER, ServerControl

log = logging.getLogger(__name__)

CHANNELS = "extensions.stored_weights.channels.StoredChannels"
START_S = 1800.0
POLL_S = 0.2
SAY_EVERY_S = 20.0
UPDATE_S = 300.0  # then the newest version is asked for again
LAST_LINES = 20  # of a server's output, which are shown if it ends
LINK_LOCAL = ("169.254.", "fe80:")  # where clouds tell secrets
NEEDED = ("prescribed_draws", "relay")  # capabilities
COMMITMENTS = "commitments"  # a capability, and a field of its requests


class ServerError(Exception):
    """The volunteer's own server does not start, or does not do what it must; the message is one line."""


class WeightsError(Exception):
    """A version could not be fetched or loaded; a later one may be."""


class LocalServer:
    """A server on loopback. module: of the adapter. options: further options of its command line.

    commits: whether its completions come with commitments.
    """

    def __init__(
        self,
        python: str,
        module: str,
        model: Path,
        directory: Path,
        options: Sequence[str],
        commits: bool = False,
    ):
        self._command = [python, "-m", module, "--host", "127.0.0.1", "--model", str(model), *options]
        self._directory = directory
        self._commits = commits
        self._token = secrets.token_hex(16)
        self._process: asyncio.subprocess.Process | None = None
        self._output: deque[str] = deque(maxlen=LAST_LINES)
        self._reading: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._url = ""
        self._epoch = 0
        self.run = ""
        self.sources: list[str] = []
        self.info: ContractInfo | None = None
        self.weights: Weights | None = None  # of the run; None before the first ones

    async def start(self, sources: Sequence[str]) -> None:
        """Starts the server, and waits until it is ready. Raises ServerError."""
        self.sources = list(sources)
        with ReservedPort() as port:
            self._url = f"http://127.0.0.1:{port.number}"
            options = ["--port", str(port.number), "--weight-channels", CHANNELS]
            options += ["--weight-sources", *map(_source, sources)]
            options += ["--weight-directory", str(self._directory)]
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                *options,
                env=os.environ | {TOKEN_VARIABLE: self._token, "HF_HUB_OFFLINE": "1"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C at the terminal is for the volunteer alone
                preexec_fn=die_with_parent,
            )
        self._reading = asyncio.create_task(self._read())
        self._session = open_session(self._token)
        self._control = ServerControl(self._session, self._url)
        try:
            async with asyncio.timeout(START_S):
                await self._until_ready()
        except TimeoutError:
            raise ServerError(f"the server was not ready within {START_S:g} s") from None
        needed = [*NEEDED, COMMITMENTS] if self._commits else NEEDED
        missing = [word for word in needed if word not in self.info.capabilities]
        if missing:
            raise ServerError(
                f"{self.info.engine} {self.info.engine_version} does not declare {' and '.join(missing)}: "
                "take another --engine"
            )

    async def _until_ready(self) -> None:
        while True:
            if self._process.returncode is not None:
                await self._reading
                last = " | ".join(self._output) or f"status {self._process.returncode}"
                raise ServerError(f"the server has ended: {last[-2000:]}")
            with contextlib.suppress(*NO_ANSWER):
                if await self._control.health_status() == "ready":
                    self.info = await self._control.contract()
                    return
            await asyncio.sleep(POLL_S)

    async def _read(self) -> None:
        while line := await self._process.stdout.readline():
            text = line.decode(errors="replace").rstrip()
            self._output.append(text)
            log.debug("server: %s", text)

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.returncode is not None

    async def close(self) -> None:
        """Ends the server."""
        if self._session is not None:
            await self._session.close()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(10):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._reading is not None:
            self._reading.cancel()

    # --- weights ----------------------------------------------------------------------------------

    async def join_run(self, run: Run) -> None:
        """Joins the weight channel of a run. Raises one of `NO_ANSWER`."""
        self._epoch += 1
        await self._control.init_weight_channel(
            InitWeightChannelRequest(
                run=run.run,
                takeover=True,
                epoch=self._epoch,
                kind="relay",
                sources=run.sources,
                public_keys=run.public_keys,
                follow=False,
            )
        )
        self.run = run.run
        self.weights = None

    async def update(self, weights: Weights) -> None:
        """Makes the server serve a version. Raises WeightsError, or one of `NO_ANSWER`."""
        request = ChannelUpdateRequest(
            run=self.run,
            epoch=self._epoch,
            version=weights.version,
            manifest_sha256=weights.manifest_sha256,
            kv_cache="recompute" if "recompute" in self.info.kv_cache else "keep",
            timeout_s=UPDATE_S,
        )
        await self._control.request_weight_update(request)
        waited_s = 0.0
        while (
            status := await self._control.weight_update(weights.version, SAY_EVERY_S)
        ).state == "receiving":
            waited_s += SAY_EVERY_S
            channel = (await self._control.contract()).channel
            done, total = (each or 0 for each in (channel.bytes_done, channel.bytes_total))
            has = f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else "no relay has given anything yet"
            log.warning("version %d has not arrived after %.0f s: %s", weights.version, waited_s, has)
        if status.state != "live":
            raise WeightsError(f"version {weights.version} could not be loaded: {status.error}")
        self.weights = weights

    # --- completions ------------------------------------------------------------------------------

    async def make(self, task: Task) -> list[Made]:
        """Returns the completions of a task. Raises ServerError, or an aiohttp error."""
        body = {
            "model": self.info.model,
            "prompt": [member.prompt for member in task.members],
            "max_tokens": task.max_tokens,
            "temperature": task.temperature,
            "stop_token_ids": task.stop_token_ids,
            "logprobs": True,
        }
        if task.temperature > 0:
            body["draw_keys"] = [member.key for member in task.members]
        if self._commits:
            body[COMMITMENTS] = True
        timeout = aiohttp.ClientTimeout(total=max(1.0, task.expires_s))
        async with self._session.post(f"{self._url}/v1/completions", json=body, timeout=timeout) as response:
            answer = msgspec.json.decode(await response.read())
        if response.status != 200:
            raise ServerError(f"the server answered {response.status}: {answer.get('error')}")
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        return [self._made(choice) for choice in choices]

    def _made(self, choice: dict) -> Made:
        """Raises ServerError if the choice has no commitments, and must have."""
        logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
        proofs = b""
        if self._commits:
            committed = choice.get(COMMITMENTS) or {}
            if committed.get("format") != FORMAT:
                given = printable(str(committed.get("format")))[:50]
                raise ServerError(f"{self.info.engine} gives commitments of the format {given}, not {FORMAT}")
            proofs = b64decode(committed["proofs"])
        return Made(choice["token_ids"], logprobs, choice["finish_reason"], proofs)


def _source(url: str) -> str:
    """Raises ServerError for what is no URL of a source: a gateway must not bring options to a server."""
    try:
        location = Location.of(url)
        if location.scheme == "file" or location.host.startswith(LINK_LOCAL):
            raise ValueError(f"{url}: a relay is http:// or https:// at a host")
    except ValueError as error:
        raise ServerError(f"the gateway names a source that is none: {printable(str(error))}") from None
    return url
