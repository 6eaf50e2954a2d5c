"""The audit: prefills the completions of uploads in batches, in one thread, and applies the checks."""

import asyncio
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
from transformers import PreTrainedModel

from extensions.volunteers.gateway import checks
from extensions.volunteers.gateway.checks import Refusal
from extensions.volunteers.gateway.models import AuditModels
from extensions.volunteers.gateway.numerics import Numerics
from extensions.volunteers.gateway.observations import Observations
from extensions.volunteers.gateway.prefill import Prefilled, prefill
from extensions.volunteers.gateway.tasks import OpenTask
from extensions.volunteers.messages import Made
from inference_adapters.threads import in_daemon_thread

MOST_AT_ONCE = 128  # completions
OBSERVED = frozenset(
    {"randomness", "activations", "logprobs", "near_misses"}
)  # what `--observe` measures, and does not refuse


@dataclass(frozen=True)
class Verdict:
    """What the audit found. logprobs: of each completion, the audit's own. is_stale: its weights are gone."""

    refusal: Refusal | None = None
    logprobs: list[list[float]] = field(default_factory=list)
    tokens: int = 0
    near_misses: int = 0
    is_stale: bool = False


@dataclass(eq=False)
class _Waiting:
    task: OpenTask
    made: list[Made]
    verdict: "asyncio.Future[Verdict]"


class Auditor:
    """Audits uploads. Its coroutines run in the server's loop.

    hidden: elements of the rows of commitments; None if these are not required. observations: what
    `--observe` collects, or None. off: names of checks that are not made, for tests.
    """

    def __init__(
        self,
        models: AuditModels,
        allowed: Numerics,
        vocabulary: int,
        ends: Collection[int],
        hidden: int | None,
        observations: Observations | None = None,
        off: Collection[str] = (),
    ):
        self._models = models
        self._allowed = allowed
        self._vocabulary = vocabulary
        self._ends = frozenset(ends)
        self._hidden = hidden
        self._observations = observations
        self.observes = observations is not None
        self._off = frozenset(off) | (OBSERVED if observations else frozenset())
        self._waiting: list[_Waiting] = []
        self._running: asyncio.Task[None] | None = None
        self.seconds = 0.0  # that the thread has worked
        self.completions = 0

    @property
    def waiting(self) -> int:
        """The number of uploads that wait."""
        return len(self._waiting)

    def look(self, task: OpenTask, made: list[Made]) -> Refusal | None:
        """Makes the checks that need no model."""
        found = [
            lambda: checks.schema(task.members, made, self._vocabulary, self._hidden),
            lambda: self.unless_off(checks.termination(task.members, made, self._ends)),
        ]
        return next((refusal for refusal in (each() for each in found) if refusal), None)

    async def audit(self, task: OpenTask, made: list[Made]) -> Verdict:
        """Returns the verdict. Raises the error if the audit itself fails."""
        verdict = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(task, made, verdict))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await verdict

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
        if self._observations is not None:
            self._observations.close()

    async def _run(self) -> None:
        while self._waiting:
            batch: list[_Waiting] = []
            while self._waiting and sum(len(each.made) for each in batch) < MOST_AT_ONCE:
                batch.append(self._waiting.pop(0))
            try:
                verdicts = await in_daemon_thread(self._audit, batch)
            except Exception as error:
                await self._one_by_one(batch, error)
                continue
            for each, verdict in zip(batch, verdicts, strict=True):
                if not each.verdict.done():
                    each.verdict.set_result(verdict)

    async def _one_by_one(self, batch: list[_Waiting], error: Exception) -> None:
        """Audits each upload of a failed batch alone, because one of them may be why it failed."""
        for each in batch:
            if each.verdict.done():
                continue
            if len(batch) == 1:
                each.verdict.set_exception(error)
                return
            try:
                each.verdict.set_result((await in_daemon_thread(self._audit, [each]))[0])
            except Exception as own:
                each.verdict.set_exception(own)

    def _audit(self, batch: list[_Waiting]) -> list[Verdict]:
        began = monotonic()
        by_version: dict[int, list[_Waiting]] = defaultdict(list)
        for each in batch:
            by_version[each.task.version].append(each)
        verdicts: dict[_Waiting, Verdict] = {}
        for version, uploads in by_version.items():
            with self._models.of(version) as model:
                found = None if model is None else self._prefilled(model, uploads)
            if found is None:
                verdicts |= dict.fromkeys(uploads, Verdict(is_stale=True))
                continue
            rows = iter(found)
            verdicts |= {each: self._verdict(each, [next(rows) for _ in each.made]) for each in uploads}
        self.seconds += monotonic() - began
        self.completions += sum(len(each.made) for each in batch)
        return [verdicts[each] for each in batch]

    def _prefilled(self, model: PreTrainedModel, uploads: list[_Waiting]) -> list[Prefilled]:
        pairs = [pair for each in uploads for pair in zip(each.task.members, each.made, strict=True)]
        sequences = [(wanted.prompt, one.token_ids) for wanted, one in pairs]
        temperatures = [wanted.sampling.temperature for wanted, _ in pairs]
        proofs = None if self._hidden is None else [one.proofs for _, one in pairs]
        return prefill(model, sequences, temperatures, proofs)

    def _verdict(self, upload: _Waiting, found: list[Prefilled]) -> Verdict:
        pairs = zip(upload.task.members, found, strict=True)
        gaps = [checks.gaps(wanted, one, self._allowed) for wanted, one in pairs]
        if any(np.isnan(one.low).any() for one in found):
            raise ValueError(f"the weights of version {upload.task.version} give no finite probabilities")
        refusals = [
            *(checks.randomness(place, gap, self._allowed) for place, gap in enumerate(gaps)),
            checks.activations(found, self._allowed),
            *(
                checks.logprobs(place, made, one, self._allowed)
                for place, (made, one) in enumerate(zip(upload.made, found, strict=True))
            ),
        ]
        refusal = next((each for each in map(self.unless_off, refusals) if each), None)
        if self._observations is not None:
            self._observations.add(upload.task.members, gaps, upload.made, found)
        return Verdict(
            refusal,
            [one.logprobs.tolist() for one in found],
            sum(len(gap) for gap in gaps),
            sum(checks.count_near(gap) for gap in gaps),
        )

    def unless_off(self, refusal: Refusal | None) -> Refusal | None:
        return None if refusal and refusal.check in self._off else refusal
