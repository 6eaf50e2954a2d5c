"""The pool of workers: what is lost through no fault of a text is asked again, and processes end."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pipelinerl.judging.isolation import Level, Limits
from pipelinerl.judging.template import Template, TemplateError
from pipelinerl.judging.wire import Judgement
from pipelinerl.judging.workers import Setup, VerifierError, Workers
from tests.judging.processes import templates, templates_and_workers
from tests.limits import HANG_S

MEMORY_BYTES = 1 << 28
JUDGE = "tests.judging.hostile_judge.ExecutingJudge"
RIGHT = Judgement(1.0, True, "right")
IGNORING = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"


def pool(workers: int = 2, maker: str = JUDGE, cpu_s: int | None = None, **options) -> Workers:
    return Workers(Setup(maker, {}, Level.PROCESS, Limits(MEMORY_BYTES, cpu_s), **options), workers, HANG_S)


def held(directory: Path) -> str:
    """Returns a text that makes a file in the directory and is right once there is another, `go`."""
    return f"""
import os, time
open(f"{directory}/begun-{{os.getpid()}}", "w")
while not os.path.exists("{directory}/go"):
    time.sleep(0.01)
reward = 1
"""


async def until_begun(directory: Path, texts: int) -> None:
    while len(list(directory.glob("begun-*"))) < texts:
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_verdicts_are_given_at_the_same_time_and_processes_end_with_the_pool():
    async with pool() as workers:
        verdicts = await asyncio.gather(*(workers.judged("v", b"", "reward = 1") for _ in range(20)))
        assert verdicts == [RIGHT] * 20
        assert len(templates_and_workers()) >= 1
    assert templates_and_workers() == []


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_template_that_is_lost_costs_no_verdict(number, monkeypatch, tmp_path):
    lose = Template.lose

    def lost(template: Template) -> None:
        monkeypatch.setattr("pipelinerl.judging.template.START_S", HANG_S)
        lose(template)

    monkeypatch.setattr(Template, "lose", lost)
    async with pool() as workers:
        under_way = [asyncio.create_task(workers.judged("v", b"", held(tmp_path))) for _ in range(4)]
        await until_begun(tmp_path, 2)
        templates()[0].send_signal(number)
        monkeypatch.setattr("pipelinerl.judging.template.START_S", 0.1)
        (tmp_path / "go").touch()
        assert await asyncio.gather(*under_way) == [RIGHT] * 4
        assert workers.restarts == 1
    assert templates_and_workers() == []


@pytest.mark.asyncio
async def test_a_worker_that_somebody_kills_is_asked_again(tmp_path):
    async with pool(workers=1) as workers:
        under_way = asyncio.create_task(workers.judged("v", b"", held(tmp_path)))
        await until_begun(tmp_path, 1)
        templates()[0].children()[0].kill()
        (tmp_path / "go").touch()
        assert await under_way == RIGHT
        assert workers.restarts == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("ignoring", ["", pytest.param(IGNORING, marks=pytest.mark.engines)])
async def test_cpu_time_is_a_limit_of_its_own(ignoring):
    async with pool(cpu_s=1) as workers:
        judgement = await workers.judged("v", b"", ignoring + "while True:\n    pass")
        assert judgement.outcome == "undecided:time"


@pytest.mark.asyncio
async def test_a_worker_is_reused_for_verifiers_that_allow_it_alone():
    async with pool(reused=["v"]) as workers:
        process = "import os; reward = os.getpid()"
        reused = {(await workers.judged("v", b"", process)).reward for _ in range(5)}
        fresh = {(await workers.judged("other", b"", process)).reward for _ in range(5)}
        assert (len(reused), len(fresh)) == (1, 5)


@pytest.mark.asyncio
async def test_what_a_reused_worker_was_left_with_decides_on_no_other_text():
    async with pool(reused=["v"]) as workers:
        assert (
            await workers.judged(
                "v", b"", "import builtins; builtins.left = bytearray(200 << 20); reward = 1"
            )
            == RIGHT
        )
        assert await workers.judged("v", b"", "x = bytearray(200 << 20); reward = 1") == RIGHT


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("maker", "words"),
    [("tests.judging.hostile_judge.Missing", "Missing"), ("no_such_module.Judge", "no_such_module")],
)
async def test_a_judge_that_cannot_be_made_is_told(maker, words):
    with pytest.raises(TemplateError, match=words):
        await pool(maker=maker).start()
    assert templates_and_workers() == []


@pytest.mark.asyncio
async def test_forged_names_are_bounded_and_change_no_other_judgement(monkeypatch):
    monkeypatch.setattr("pipelinerl.judging.workers.MOST_NAMES", 5)
    async with pool() as workers:
        forged = [await workers.judged("v", b"", f"metrics = {{'x{i}': 1.0}}") for i in range(6)]
        assert [bool(judgement.metrics) for judgement in forged] == [True] * 5 + [False]
        assert (await workers.judged("v", b"", "metrics = {'x0': 1.0}")).metrics == {"x0": 1.0}
        assert await workers.judged("v", b"", "reward = 1") == RIGHT
        assert await workers.judged("v", b"", "reward = 1; outcome = 'a word'") == RIGHT
        unclear = await workers.judged("v", b"", "outcome = 'undecided:meaning'")
        assert unclear.outcome == "undecided:meaning"


@pytest.mark.asyncio
@pytest.mark.parametrize("number", ["float('inf')", "float('nan')", "1e300", "-1e39"])
async def test_a_number_that_training_cannot_compute_with_is_refused(number, caplog):
    async with pool() as workers:
        assert (await workers.judged("v", b"", f"reward = {number}")).outcome == "undecided:output"
    assert "a judgement is refused, and undecided:output: a number is" in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("metrics", ["3", "{'a': 'b'}", "{'a': object()}"])
async def test_a_verifier_that_returns_no_judgement_is_told(metrics):
    async with pool() as workers:
        with pytest.raises(VerifierError, match="the verifier returned no Judgement: "):
            await workers.judged("v", b"", f"metrics = {metrics}")


@pytest.mark.asyncio
async def test_the_words_of_a_failure_are_one_short_line():
    async with pool() as workers:
        with pytest.raises(VerifierError) as raised:
            await workers.judged("v", b"", r"raise ValueError('a\nb\x1b[31m\x00' + 9000 * 'c')")
    assert str(raised.value).startswith("ValueError: a b [31m cc")
    assert len(str(raised.value)) <= 300


OWNER = """
import asyncio, pathlib, sys
from tests.judging.processes import templates
from tests.judging.test_workers import held, pool, until_begun

begun = pathlib.Path(sys.argv[1])

async def main():
    async with pool() as workers:
        verdict = asyncio.create_task(workers.judged("v", b"", held(begun)))
        await until_begun(begun, 1)
        (template,) = templates()
        print(template.pid, template.children()[0].pid, flush=True)
        await verdict

asyncio.run(main())
"""


def test_template_and_workers_end_with_the_service(tmp_path):
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        processes = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        owner.kill()
    assert len(processes) == 2
    psutil.wait_procs(processes)
