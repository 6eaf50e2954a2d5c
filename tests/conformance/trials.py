"""Tries broken and odd servers with the inference kit, a few at a time: they mostly wait."""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from queue import SimpleQueue

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.inference.reference import Reference
from contracts.conformance.verdicts import Verdict
from tests.conformance.broken_servers import MUTANTS, TOKEN
from tests.conformance.servers import serving_mutant

AT_A_TIME = 4
USUAL = {"token": TOKEN, "updates": 8}
Parts = Iterable[tuple[str, str]]
HANGING = {"answer_s": 15.0}  # for servers that do not answer at all


class Trials:
    """Runs the kit on servers that have processes of their own, in the order in which they are submitted."""

    def __init__(self, model: str):
        self._pool = ThreadPoolExecutor(AT_A_TIME)
        self._references: SimpleQueue[Reference] = SimpleQueue()  # one computes for one server at a time
        for _ in range(AT_A_TIME):
            self._references.put(Reference(model, trust_remote_code=True))

    def submit(
        self, serving: AbstractContextManager[str], parts: Parts = (), **asked: object
    ) -> Future[list[Verdict]]:
        """Returns the future of the verdicts on a server, one for each part; without parts, on what is asked.

        parts: codes of guarantees, each with the name of a part.
        asked: options of the kit.
        """
        runs = [{"only": [code], "part": part} for code, part in parts] or [{}]
        return self._pool.submit(self._verdicts, serving, [USUAL | asked | run for run in runs])

    def submit_mutant(self, name: str) -> Future[list[Verdict]]:
        """Tries a broken server on the part of its guarantee that names its fault."""
        mutant = MUTANTS[name]
        limits = HANGING if mutant.hangs else {}
        asked = {"updates": mutant.updates, "thorough": mutant.thorough} | limits
        return self.submit(serving_mutant(name), [(mutant.own, mutant.part)], **asked)

    def _verdicts(self, serving: AbstractContextManager[str], runs: list[dict[str, object]]) -> list[Verdict]:
        reference = self._references.get()
        try:
            with serving as url:
                return [verdict for asked in runs for verdict in check_inference([url], reference, **asked)]
        finally:
            self._references.put(reference)

    def end(self) -> None:
        """Forgets what has not begun, and waits for the rest."""
        self._pool.shutdown(cancel_futures=True)
