"""The verifier of programs: limits, functions, shares, and what it does if its template dies."""

import asyncio
import os

import psutil
import pytest

from extensions.programs.compare import COMPARISONS
from extensions.programs.extract import program_in
from extensions.programs.pool import Programs
from extensions.programs.tasks import ProgramTask, Test
from extensions.programs.verifier import ProgramVerifier
from pipelinerl.judging.isolation import Level
from pipelinerl.judging.worker_messages import Ended
from pipelinerl.judging.workers import VerifierError
from tests.extensions.programs.test_corpora import INNOCENT, TASK, verifier
from tests.limits import HANG_S

SOLUTION = """
class Solution:
    def both(self, nums: List[int], by: Optional[int]) -> List[float]:
        print("noise")
        return [n / by for n in nums]
"""
FUNCTION = "def both(nums, by):\n    return tuple(n / by for n in nums)\n"
BOTH = ProgramTask([Test("[[1, 2], 2]", "[0.5, 1.0]"), Test("[[3], 3]", "[1]")], "function", "both", "json")
DOUBLES = ProgramTask([Test(str(n), str(2 * n)) for n in range(4)])


def answer(source):
    return f"Here it is:\n```python\n{source}\n```\n"


def judged(task, *texts, **options):
    async def of_all():
        async with verifier(**options) as judge:
            return [
                await judge.judged(task if isinstance(task, bytes) else task.encoded(), text)
                for text in texts
            ]

    return asyncio.run(of_all())


def test_a_function_is_called_and_what_it_prints_is_no_result():
    found = judged(
        BOTH,
        answer(SOLUTION),
        answer(FUNCTION),
        answer("both = None"),
        answer("def both(nums):\n    return 1"),
    )
    assert [each.outcome for each in found] == ["right", "right", "wrong", "wrong"]


def test_the_reward_is_all_or_a_share():
    half = answer("n = int(input())\nprint(n * 2 if n % 2 == 0 else 7)")
    (whole,) = judged(DOUBLES, half)
    (share,) = judged(DOUBLES, half, share=True)
    assert (whole.reward, whole.outcome, whole.metrics["tests_passed"]) == (0.0, "wrong", 1.0)
    assert (share.reward, share.outcome, share.metrics["test_share"]) == (0.5, "wrong", 0.5)


def test_a_submission_has_a_limit_of_its_own():
    (found,) = judged(DOUBLES, answer("while True:\n    pass"), cpu_s=0.2, submission_cpu_s=0.3, share=True)
    assert found.outcome == "undecided:time" and found.metrics["program_cpu_s"] < 1.5


def test_white_space_at_the_end_of_a_long_output_does_not_hide_it():
    (found,) = judged(TASK, answer("print(10)\nprint('\\n' * 70000)"))
    assert found.outcome == "undecided:output"


def test_an_answer_without_a_program_and_a_task_that_is_none():
    (found,) = judged(TASK, "no program")
    assert found.outcome == "no_answer"
    with pytest.raises(VerifierError, match="cannot be read"):
        judged(b"\x80pickle", INNOCENT)


def test_a_template_that_dies_is_replaced_and_the_test_is_run_again():
    async def killed():
        async with verifier() as judge:
            (template,) = psutil.Process().children()
            running = asyncio.create_task(
                judge.judged(TASK, answer("import time\ntime.sleep(0.3)\nprint(10)"))
            )
            while not template.children():
                await asyncio.sleep(0)
            template.kill()
            return (await running).outcome, (await judge.judged(TASK, INNOCENT)).outcome

    assert asyncio.run(killed()) == ("right", "right")


def test_cpu_time_decides_whatever_the_status_says():
    programs = Programs(None, cpu_s=1.0, output_bytes=10)
    assert programs._ran(b"", Ended(1, 0, 1.1, 0)).why_not == "time"
    assert programs._ran(b"", Ended(1, 0, 0.9, 0)).is_fine


def test_a_program_does_not_wait_for_the_others(monkeypatch):
    async def many():
        async with verifier() as judge:
            found = await asyncio.gather(*(judge.judged(TASK, INNOCENT) for _ in range(20)))
            return [each.outcome for each in found]

    before = len(os.listdir("/proc/self/fd"))
    assert asyncio.run(many()) == ["right"] * 20
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("options", [{"cpu_s": 0}, {"cpu_s": 5, "submission_cpu_s": 4}, {"output_bytes": 0}])
def test_wrong_limits_are_refused(options):
    with pytest.raises(ValueError, match="limits are positive"):
        ProgramVerifier(**options)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```\nbetter:\n```py\nb\n```", "b\n"),
        ("```\na\n```", "a\n"),
        ("```python\na\n```\n```text\nout\n```", "a\n"),
        ("```python\na\n``` \n", "a\n"),
        ("<think>```python\na\n```</think>none", None),
        ("```python\nnever closed", None),
        ("````python\n```\ninner\n```\n````", "```\ninner\n```\n"),
        ("~~~python\na\n~~~", "a\n"),
        ("```cpp\nint main;\n```", None),
        ("", None),
    ],
)
def test_the_last_block_of_python_is_the_program(text, program):
    assert program_in(text) == program


@pytest.mark.parametrize(
    ("compare", "output", "expected", "equal"),
    [
        ("lines", "1 \n2\n\n", "1\n2", True),
        ("lines", "1 2", "1\n2", False),
        ("lines", " 1", "1", False),
        ("tokens", "1 2", "1\n2\n", True),
        ("floats", "0.3333333 yes", "0.33333333333 yes", True),
        ("floats", "0.34", "0.33", False),
        ("floats", "nan", "1", False),
        ("json", "[1, 2.0000001]", "[1.0, 2]", True),
        ("json", "true", "1", False),
        ("json", '{"a": [1]}', '{"a": [1]}', True),
        ("json", "no json", "1", False),
        ("json", "[" * 200 + "]" * 200, "[" * 200 + "]" * 200, False),
        ("json", "1" + "0" * 400, "1.0", False),
        ("wrapped", "3", "[3]", True),
        ("wrapped", "[3]", "[3]", True),
        ("wrapped", "4", "[3]", False),
    ],
)
def test_outputs_are_compared(compare, output, expected, equal):
    assert COMPARISONS[compare](output, expected) is equal


def test_the_level_is_the_one_that_is_asked_for():
    async def at_process():
        judge = ProgramVerifier()
        await judge.start(Level.PROCESS)
        try:
            return (await judge.judged(TASK, INNOCENT)).outcome
        finally:
            await judge.close()

    assert asyncio.run(at_process()) == "right"


def test_no_memory_or_descriptor_of_a_program_holds_what_is_expected():
    mark = f"expected-{os.urandom(8).hex()}"
    task = ProgramTask([Test("1", mark)]).encoded()

    async def looked_at():
        async with verifier(cpu_s=HANG_S, submission_cpu_s=HANG_S) as judge:
            (template,) = psutil.Process().children()
            judging = asyncio.create_task(
                judge.judged(task, answer("input()\nimport time\ntime.sleep(10**6)"))
            )
            while not (found := template.children()) or found[0].status() != psutil.STATUS_SLEEPING:
                await asyncio.sleep(0)
            memory = readable_memory(found[0].pid)
            descriptors = os.listdir(f"/proc/{found[0].pid}/fd")
            judging.cancel()
            return memory, descriptors

    memory, descriptors = asyncio.run(looked_at())
    assert b"time.sleep(10**6)" in memory
    assert mark.encode() not in memory
    assert sorted(descriptors) == ["0", "1", "2"]


def readable_memory(pid):
    """Returns the content of the writable mappings of a process."""
    content = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            if " rw" in line and "[v" not in line:
                memory.seek(begin)
                content.append(memory.read(end - begin))
    return b"".join(content)
