"""The service that runs programs: how they end, what they leave, and what holds them."""

import asyncio
import json
import os
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from extensions.agents.programs import fence, pool, selftest
from extensions.agents.programs.messages import AgentLimits, AgentTask, Result, Run
from extensions.agents.programs.verifier import AgentPrograms
from pipelinerl.judging.isolation import Level
from pipelinerl.judging.template import WorkerLostError
from tests.limits import HANG_S


def has_fence() -> bool:
    try:
        return fence.landlock.version() >= fence.landlock.WITH_SCOPES
    except OSError:
        return False


needs_fence = pytest.mark.skipif(not has_fence(), reason="this kernel's Landlock holds no ports or signals")
FENCED = pytest.param("fenced", marks=needs_fence)
LIMITS = AgentLimits(4 << 30, 1 << 28)
BEGIN = "import json, os, signal, subprocess, sys, time\ntask = json.load(sys.stdin)\n"
RESULT = "json.dump({}, open(os.environ['RESULT'], 'w'))\n"
MARK = "pipelinerl-test-agent"  # in the command line of what programs start


@asynccontextmanager
async def service(tmp_path: Path, **options):
    script = tmp_path / "agent.py"
    script.write_text(BEGIN + "exec(task['code'])")
    programs = AgentPrograms(command=[sys.executable, "-I", "-S", str(script)], **options)
    try:
        await programs.start(Level.SEALED)
        yield programs
    finally:
        await programs.close()


async def judged(programs: AgentPrograms, code: str, port: int = 9) -> Run:
    task = AgentTask(f"http://127.0.0.1:{port}", "key", json.dumps({"code": code}).encode())
    judgement = await programs.judged(msgspec.msgpack.encode(task), "")
    return msgspec.json.decode(judgement.said, type=Run)


def runs(tmp_path: Path, codes, port: int = 9, **options) -> list[Run]:
    async def ran():
        async with service(tmp_path, **options) as programs:
            return await asyncio.gather(*(judged(programs, code, port) for code in codes))

    return asyncio.run(ran())


def left() -> list[psutil.Process]:
    """Returns the descendants of this process that programs have started."""
    every = psutil.Process().children(recursive=True)
    return [each for each in every if MARK in " ".join(each.cmdline())]


WHY = {
    "raise ValueError('no luck')": ("exit status 1", "ValueError: no luck"),
    "sys.exit(3)": ("exit status 3", ""),
    "os.kill(os.getpid(), 9)": ("exit status 137", ""),
    "print('done')": ("it left no result in the file that RESULT names", "done"),
    "open(os.environ['RESULT'], 'w').write('{')": ("its result cannot be read", ""),
    RESULT.format("{'reward': float('nan')}"): ("its result cannot be read", ""),
    RESULT.format("{'reward': 1e9}"): ("its result cannot be read", ""),
    RESULT.format("{'rewards': 1}"): ("its result cannot be read", ""),
    "os.mkfifo(os.environ['RESULT'])": ("its result cannot be read", ""),
    "os.symlink('/etc/passwd', os.environ['RESULT'])": ("its result cannot be read", ""),
    RESULT.format("{'answer': 'x' * 70_000}"): ("its result cannot be read", ""),
}


def test_how_programs_end(tmp_path):
    found = runs(tmp_path, WHY)
    said = [(run.why.partition(":")[0], run.words) for run in found]
    assert said == [(why, words) for why, words in WHY.values()]
    assert {run.result for run in found} == {None}


def test_a_program_finds_what_is_documented_and_leaves_nothing(tmp_path):
    names = ["OPENAI_BASE_URL", "OPENAI_API_KEY", "HOME", "TMPDIR", "RESULT", "MINE"]
    code = f"metrics = {{name: float(len(os.environ[name])) for name in {names}}}\n"
    code += "assert os.getcwd() == os.environ['HOME'] == os.path.dirname(os.environ['RESULT'])\n"
    code += (
        "answer = os.environ['OPENAI_BASE_URL'] + ' ' + os.environ['OPENAI_API_KEY'] + ' ' + os.getcwd()\n"
    )
    code += RESULT.format("{'answer': answer, 'reward': 0.5, 'success': True, 'metrics': metrics}")
    (run,) = runs(tmp_path, [code], env={"MINE": "12"})
    assert run.why == "" and isinstance(run.result, Result)
    url, key, directory = run.result.answer.split()
    assert (url, key) == ("http://127.0.0.1:9/v1", "key") and not os.path.exists(directory)
    assert (run.result.reward, run.result.success, run.result.metrics["MINE"]) == (0.5, True, 2)


def test_a_secret_of_the_service_is_not_in_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPELINERL_TOKEN", "secret")
    (run,) = runs(tmp_path, [RESULT.format("{'success': 'PIPELINERL_TOKEN' in os.environ}")])
    assert run.result.success is False


START = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', '{MARK}']{{}})\n"
LEAVING = {
    "a child": START.format(""),
    "one that leaves the session": START.format(", start_new_session=True"),
    "one whose parent has ended": "if not os.fork():\n    os.setsid()\n    "
    + START.format("")
    + "    os._exit(0)\n",
    "one that is stopped": START.format("").strip() + ".send_signal(signal.SIGSTOP)\n",
}


@pytest.mark.parametrize("isolation", [FENCED, "process"])
def test_what_a_program_starts_ends_with_it(tmp_path, isolation):
    async def ran():
        async with service(tmp_path, isolation=isolation) as programs:
            codes = [code + RESULT.format("{}") for code in LEAVING.values()]
            found = await asyncio.gather(*(judged(programs, code) for code in codes))
            return found, left()

    found, processes = asyncio.run(ran())
    assert [run.why for run in found] == [""] * len(LEAVING) and processes == []


def test_an_endless_program_is_ended_at_its_time(tmp_path):
    endless = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + START.format("") + "while True: time.sleep(9)"
    )
    found = runs(
        tmp_path, [endless, START.format("") + "os.kill(os.getpid(), signal.SIGSTOP)"], timeout_s=0.5
    )
    assert [run.why for run in found] == ["timeout"] * 2 and left() == []


def test_a_question_that_is_abandoned_ends_the_program(tmp_path):
    async def abandoned():
        async with service(tmp_path) as programs:
            code = START.format("") + "time.sleep(600)"
            asking = asyncio.create_task(judged(programs, code))
            while not left():
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            return left()

    assert asyncio.run(abandoned()) == []


def test_programs_end_with_a_template_that_is_killed(tmp_path):
    async def lost():
        async with service(tmp_path) as programs:
            asking = asyncio.create_task(judged(programs, START.format("") + "time.sleep(600)"))
            while not left():
                await asyncio.sleep(0)
            processes = left()
            template = programs._pool._template
            template.lose()
            with pytest.raises(WorkerLostError):
                await template.fork(lambda number: None, [])
            await asyncio.gather(asking, return_exceptions=True)
            _, alive = await asyncio.to_thread(psutil.wait_procs, processes, timeout=HANG_S)
            (run,) = await asyncio.gather(judged(programs, RESULT.format("{}")))
            return alive, run

    alive, run = asyncio.run(lost())
    assert alive == [] and run.result == Result()


def test_output_without_end_and_a_directory_that_grows_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "LOOK_S", 0.05)
    prints = "for _ in range(200): print('x' * 100_000)\nprint('end')\n" + RESULT.format("{}") + "sys.exit(1)"
    grows = "while True:\n    open(str(time.time()), 'w').write('x' * 500_000)"
    large = "open('large', 'w').write('x' * 2_000_000)"
    printed, grown, refused = runs(tmp_path, [prints, grows, large], disk_bytes=1 << 20)
    assert printed.words == "end"
    assert grown.why == "its directory holds more than 1048576 bytes (domain.agent.disk_bytes)"
    assert refused.result is None and "File too large" in refused.words


def test_memory_is_bounded(tmp_path):
    (run,) = runs(tmp_path, ["x = bytearray(1 << 30)"], memory_bytes=1 << 28)
    assert (run.why, run.words) == ("exit status 1", "MemoryError")


SERVED = """
import json, sys
for line in sys.stdin:
    given = json.loads(line)
    if "task" in given:
        said = eval(given["task"]["code"], {"given": given, "sys": sys, "json": json})
        print(said if isinstance(said, str) else json.dumps({"id": given["id"], **said}), flush=True)
"""


def served(tmp_path, codes, **options):
    script = tmp_path / "served.py"
    script.write_text(SERVED)

    async def ran():
        programs = AgentPrograms(command=[sys.executable, "-I", "-S", str(script)], serve=True, **options)
        try:
            await programs.start(Level.SEALED)
            return [await judged(programs, code) for code in codes]
        finally:
            await programs.close()

    return asyncio.run(ran())


GOOD = "{'result': {'answer': given['base_url'] + given['api_key'], 'reward': 1}}"


def test_one_program_serves_many_attempts(tmp_path):
    first, second, reported, refused, third = served(
        tmp_path, [GOOD, GOOD, "{'error': 'no'}", "{'result': {'reward': 1e9}}", GOOD]
    )
    assert first == second == third and first.result.answer == "http://127.0.0.1:9/v1key"
    assert (reported.why, reported.words) == ("it reported an error", "no")
    assert refused.why.startswith("its result cannot be read")


def test_lines_that_are_no_answers_are_skipped(tmp_path):
    strays = "'\\n'.join(['no json', '{}', json.dumps({'id': given['id'], 'result': {}})])"
    (run,) = served(tmp_path, [strays])
    assert run.result == Result()


@pytest.mark.parametrize(
    ("code", "why"), [("sys.exit('gone')", "it ended"), ("'x' * 2_000_000", "it printed")]
)
def test_a_program_that_serves_nothing_fails_and_is_started_again(tmp_path, code, why):
    bad, good = served(tmp_path, [code, GOOD])
    assert bad.why.startswith(why) and good.result.reward == 1
    assert bad.words == ("gone" if why == "it ended" else "")


def test_attempts_are_tried_again_if_a_program_has_served_others(tmp_path):
    with pytest.raises(WorkerLostError, match="gone"):
        served(tmp_path, [GOOD, "sys.exit('gone')"])


MANY = """
import json, sys, threading
def run(given):
    if given["task"]["code"] == "hang":
        threading.Event().wait()
    print(json.dumps({"id": given["id"], "result": {"answer": str(threading.get_native_id())}}), flush=True)
for line in sys.stdin:
    given = json.loads(line)
    if "task" in given:
        threading.Thread(target=run, args=[given], daemon=True).start()
"""


def test_a_program_that_says_nothing_gets_no_further_attempts_and_keeps_those_that_it_has(tmp_path):
    """A younger attempt of it is not disturbed."""
    script = tmp_path / "many.py"
    script.write_text(MANY)

    async def ran():
        programs = AgentPrograms(command=[sys.executable, str(script)], serve=True, timeout_s=60.0)
        try:
            await programs.start(Level.SEALED)
            hung = asyncio.create_task(judged(programs, "hang"))
            first = programs._served
            while first._running is None or not first._running.is_busy:
                await asyncio.sleep(0)
            first._timeout_s = 600.0
            younger = asyncio.create_task(judged(programs, "hang"))
            while len(first._running._open) < 2:
                await asyncio.sleep(0)
            old = first._running
            old._open[0].set_exception(TimeoutError())
            assert (await hung).why == "timeout" and not younger.done()
            good = await judged(programs, "good")
            assert first._running is not old and old.is_busy and not old.is_ended
            younger.cancel()
            await asyncio.gather(younger, return_exceptions=True)
            return good, old.is_ended
        finally:
            await programs.close()

    good, is_ended = asyncio.run(ran())
    assert good.result.answer and is_ended


def test_a_lost_attempt_is_made_again(tmp_path):
    with pytest.raises(WorkerLostError, match="the box is gone"):
        served(tmp_path, ["{'lost': 'the box is gone'}"])


def test_a_served_program_that_reads_nothing_costs_an_attempt_its_time(tmp_path):
    script = tmp_path / "silent.py"
    script.write_text("import time\ntime.sleep(600)")

    async def ran():
        programs = AgentPrograms(command=[sys.executable, str(script)], serve=True, timeout_s=0.2)
        try:
            await programs.start(Level.SEALED)
            return await judged(programs, "x" * 400_000)
        finally:
            await programs.close()

    assert asyncio.run(ran()).why == "timeout"


HOSTILE = {
    "many levels": "for _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')",
    "no modes": "os.makedirs('a/b')\nopen('a/b/c', 'w')\nos.chmod('a/b', 0)\nos.chmod('.', 0)",
}


@pytest.mark.parametrize("isolation", [FENCED, "process"])
def test_a_directory_is_removed_whatever_a_program_did_to_it(tmp_path, isolation):
    async def ran():
        async with service(tmp_path, isolation=isolation) as programs:
            found = await asyncio.gather(*(judged(programs, code) for code in HOSTILE.values()))
            return found, os.listdir(programs._pool._directories)

    found, directories = asyncio.run(ran())
    assert [run.result for run in found] == [None, None] and directories == []


def test_a_burst_of_starts_loses_no_program(tmp_path):
    codes = [RESULT.format("{'reward': %d}") % number for number in range(100)]
    env = {"LARGE": "x" * 2000}
    found = runs(tmp_path, codes, env=env, programs=100, isolation="process")
    assert [run.result.reward for run in found] == [*range(100)]


@needs_fence
def test_this_machine_has_the_fence_that_its_self_test_says():
    assert selftest.through(LIMITS) == ""


@needs_fence
@pytest.mark.parametrize(
    ("module", "name", "found"),
    [
        (fence.landlock, "restrict", "read a file"),
        (fence.seccomp, "restrict", "open a Unix socket"),
    ],
)
def test_without_one_defence_hostile_programs_get_through(monkeypatch, module, name, found):
    monkeypatch.setattr(module, name, lambda _: None)
    assert found in selftest.through(LIMITS)


@needs_fence
def test_a_fenced_program_reaches_the_endpoint_and_no_other_port(tmp_path):
    connect = "import socket\nsocket.create_connection(('127.0.0.1', {})).close()\n" + RESULT.format("{}")
    connect = connect.replace("{})).", "%d)).")
    with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_server(("127.0.0.1", 0)) as other:
        port = ours.getsockname()[1]
        allowed, refused = runs(tmp_path, [connect % port, connect % other.getsockname()[1]], port)
    assert allowed.why == "" and "Permission" in refused.words


def test_a_command_that_cannot_be_executed_says_so(tmp_path):
    script = tmp_path / "agent.sh"
    script.write_text("#!/no/such/shell\n")
    script.chmod(0o755)

    async def ran():
        programs = AgentPrograms(command=[str(script)])
        try:
            await programs.start(Level.SEALED)
            return await judged(programs, "")
        finally:
            await programs.close()

    run = asyncio.run(ran())
    assert (run.why, run.words) == ("exit status 127", f"{script}: No such file or directory")
