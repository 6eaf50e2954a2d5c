"""Programs in the judging service, as a run asks it, and through its restarts."""

import asyncio
import os
import random
from contextlib import suppress

import psutil
import pytest

from extensions.programs.domain import VERIFIER
from pipelinerl.judging.child import JudgingEndedError, judging_service
from pipelinerl.judging.options import HOSTED, JudgingConfig
from tests.extensions.programs.corpus import programs
from tests.extensions.programs.test_corpora import INNOCENT, TASK
from tests.limits import HANG_S

SPEC = {"_target_": VERIFIER, HOSTED: HANG_S}
SECRETS = [program for program in programs("hostile.txt") if program.kind == "secrets"]
SUBMISSIONS = 2000
STRIKES = 30
SLEEPS = "```python\nimport time\ntime.sleep(0.5)\nprint(10)\n```"


def options(**more):
    return JudgingConfig(workers=2, verifiers={"code": SPEC}, **more)


def busy(module):
    """Returns the processes of this test that run the module and have started others."""
    return [each for each in psutil.Process().children(recursive=True) if is_busy(each, module)]


def is_busy(process, module):
    try:
        return module in process.cmdline() and process.children() != []
    except psutil.Error:  # it has just ended
        return False


def asked(texts, act=None, **more):
    async def answers():
        async with judging_service(options(**more)) as client:
            asking = [asyncio.create_task(client.judged("code", TASK, text)) for text in texts]
            if act:
                await act()
            return [judgement.outcome for judgement in await asyncio.gather(*asking)]

    return asyncio.run(answers())


def test_programs_are_judged_without_a_right_or_a_secret():
    texts = [INNOCENT, "```python\nprint(11)\n```", "none", *(program.answer for program in SECRETS)]
    outcomes = asked(texts)
    assert outcomes[:3] == ["right", "wrong", "no_answer"]
    assert "right" not in outcomes[3:]


@pytest.mark.parametrize("module", ["extensions.programs.template", "pipelinerl.judging"])
def test_what_dies_is_asked_again(module):
    async def kill():
        while not (found := busy(module)):
            await asyncio.sleep(0.01)
        found[0].kill()

    assert asked([SLEEPS] * 4, kill) == ["right"] * 4


def test_a_machine_that_cannot_seal_programs_refuses_them_unless_it_is_said():
    with pytest.raises(
        JudgingEndedError, match="code runs what the model wrote, and the level would be process"
    ):
        asked([INNOCENT], isolation="process")
    assert asked([INNOCENT], isolation="process", require="process") == ["right"]


@pytest.mark.long
def test_judging_that_is_killed_and_stopped_at_random_loses_no_verdict():
    drawn = random.Random(int(os.environ.get("SEED", "0")))
    modules = ["extensions.programs.template", "pipelinerl.judging"]
    right = [drawn.random() < 0.5 for _ in range(SUBMISSIONS)]
    texts = [INNOCENT if each else INNOCENT.replace("sum", "max") for each in right]

    async def strike():
        for _ in range(STRIKES):
            await asyncio.sleep(drawn.random())
            if found := busy(drawn.choice(modules)):
                hit = found[0]
                with suppress(psutil.Error):
                    if drawn.random() < 0.5:
                        hit.kill()
                    else:
                        hit.suspend()
                        await asyncio.sleep(drawn.random())
                        hit.resume()

    expected = ["right" if each else "wrong" for each in right]
    assert asked(texts, strike) == expected
