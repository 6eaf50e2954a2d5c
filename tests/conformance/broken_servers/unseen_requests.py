"""Broken servers that were written from the contract's text alone: requests, and who may send them."""

import asyncio
import json

import torch

from contracts.errors import ContractError
from inference_adapters import app, body_limits, generation_routes, scripted
from inference_adapters.body_limits import BodyLimits
from inference_adapters.membership import Membership
from inference_adapters.scripted import VOCABULARY, ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant

WRONG = "greedy token|log-probability"


def behind(gateway):
    """Puts an ASGI gateway between the check of the token and the routes."""
    right = BodyLimits.__init__

    def init(self, app, limits):
        right(self, gateway(app), limits)

    BodyLimits.__init__ = init


@mutant("G3", WRONG, part="updates")
def memoises_answers(options):
    class Gateway:
        def __init__(self, inner):
            self.inner = inner
            self.answers = {}

        async def __call__(self, scope, receive, send):
            if scope["type"] != "http" or not scope["path"].startswith("/v1/") or scope["method"] != "POST":
                return await self.inner(scope, receive, send)
            first = await receive()
            body = first["body"]
            fields = json.loads(body or b"{}")
            given = [first]

            async def again():
                return given.pop() if given else await receive()

            if not isinstance(fields, dict) or (
                fields.get("temperature") != 0 and fields.get("seed") is None
            ):
                return await self.inner(scope, again, send)
            key = (scope["path"], body)
            if key in self.answers:
                for message in self.answers[key]:
                    await send(message)
                return None
            sent = []

            async def keep(message):
                sent.append(message)
                await send(message)

            await self.inner(scope, again, keep)
            whole = b"".join(message.get("body", b"") for message in sent)
            ended = sent and not sent[-1].get("more_body") and b'"abort"' not in whole
            if ended and sent[0].get("status") == 200:
                self.answers[key] = sent
            return None

    behind(Gateway)


@mutant("G6", "no_group|broadcast|contract said", part="requests")
def leaves_its_group_before_it_checks_a_join(options):
    right = Membership.join

    async def join(self, request):
        known = [known.request for known in (self._joining, self._joined) if known]
        if request not in known and not self._ledger.exclusive:
            self._engine.leave_group()
            self.group = None
        return await right(self, request)

    Membership.join = join


@mutant("G6", "half a character|^500", part="http")
class FailsOnHalfACharacterInMessages(ScriptedEngine):
    async def start(self, version):
        await super().start(version)
        right = body_limits.check_json

        def check(scope, body):
            try:
                right(scope, body)
            except ContractError:
                if "chat" not in scope["path"] or b"\\ud8" not in body.lower():
                    raise

        body_limits.check_json = check

    def encode_chat(self, messages, tools):
        json.dumps(messages, ensure_ascii=False).encode()
        return super().encode_chat(messages, tools)


@mutant("G6", "500|no answer", part="http")
def fails_on_deep_nesting(options):
    right = body_limits.check_json

    def check(scope, body):
        try:
            right(scope, body)
        except ContractError:
            json.loads(body.decode(errors="replace"))  # RecursionError
            raise

    def checked(scope, body):
        try:
            check(scope, body)
        except json.JSONDecodeError:
            right(scope, body)

    body_limits.check_json = checked


class Faulting(ScriptedEngine):
    """Looks up an id beyond the vocabulary, and loses the device."""

    dead = False

    def fault(self, ids):
        if any(i >= VOCABULARY for i in ids):
            type(self).dead = True
        if self.dead:
            for one in self._sequences:
                one.aborted = True
            raise RuntimeError("device-side assert triggered")


@mutant("G6", "500|no answer|200", part="edges")
class DiesOfAnIdInThePrompt(Faulting):
    def generate(self, prompt_token_ids, sampling):
        return self._generate(prompt_token_ids, sampling)

    async def _generate(self, prompt, sampling):
        self.fault(prompt)
        async for delta in super()._generate(prompt, sampling):
            yield delta


@mutant("G6", "500|no answer|200|were not", part="edges")
class DiesOfAnIdInStopTokenIds(Faulting):
    async def _generate(self, prompt, sampling):
        self.fault(sampling.stop_token_ids)
        async for delta in super()._generate(prompt, sampling):
            yield delta


@mutant("G6", "500|no answer|200", part="edges")
class DiesOfAnIdToScore(Faulting):
    async def score(self, request):
        self.fault([i for ids in request.sequences for i in ids])
        return await super().score(request)

    async def _generate(self, prompt, sampling):
        self.fault([])
        async for delta in super()._generate(prompt, sampling):
            yield delta


@mutant("G10", "413|400|422", part="bodies")
def reads_the_body_before_the_token(options):
    right = app.BearerToken.__call__
    stated = {}
    made = BodyLimits.__init__

    def init(self, app, limits):
        stated["all"] = limits
        made(self, app, limits)

    async def check(self, scope, receive, send):
        async def refuse(scope, receive, send):
            await right(self, scope, receive, send)

        await BodyLimits(refuse, stated["all"])(scope, receive, send)

    BodyLimits.__init__ = init
    app.BearerToken.__call__ = check


@mutant("G11", "are there|requests", part="connections")
def notices_the_end_of_a_connection_by_writing(options):
    async def to_its_end(receive, work):
        return await work

    generation_routes.until_disconnect = to_its_end


@mutant("G11", "are there|requests", part="connections")
def keeps_the_connection_behind_a_proxy(options):
    def gateway(inner):
        async def call(scope, receive, send):
            async def upstream():
                message = await receive()
                if message["type"] == "http.disconnect":
                    await asyncio.sleep(600)
                return message

            await inner(scope, upstream, send)

        return call

    behind(gateway)


@mutant("G11", "are there|requests", part="prompts")
class ReadsALongPromptToItsEnd(ScriptedEngine):
    """Processes a prompt in one step, a millisecond per token, which nothing can interrupt."""

    async def _generate(self, prompt, sampling):
        self._sequences.add(one := scripted.RunningRequest([], torch.zeros(scripted.HIDDEN)))
        step = asyncio.create_task(asyncio.sleep(len(prompt) * 1e-3 if len(prompt) > 1000 else 0))
        try:
            await asyncio.shield(step)
        except asyncio.CancelledError:
            await step
            raise
        finally:
            self._sequences.discard(one)
        async for delta in super()._generate(prompt, sampling):
            yield delta
