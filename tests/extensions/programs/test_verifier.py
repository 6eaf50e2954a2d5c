"""The verifier of programs: limits, functions, shares, and what it does if its template dies."""

import asyncio
import gc
import os
import signal

import psutil
import pytest

from extensions.programs import pool
from extensions.programs.compare import COMPARISONS
from extensions.programs.extract import program_in
from extensions.programs.pool import Programs
from extensions.programs.tasks import ProgramTask, Test
from extensions.programs.verifier import ProgramVerifier
from pipelinerl.judging.isolation import Level
from pipelinerl.judging.worker_messages import Ended
from pipelinerl.judging.workers import VerifierError
from tests.extensions.programs.test_corpora import INNOCENT, TASK, template_of_this, verifier
from tests.limits import HANG_S

SOLUTION = """
class Solution:
    def both(self, nums: List[int], by: Optional[int]) -> List[float]:
        print("noise")
        return [n / by for n in nums]
"""
FUNCTION = "def both(nums, by):\n    return tuple(n / by for n in nums)\n"
GUARDED = FUNCTION + "if __name__ == '__main__':\n    print(both(input(), int(input())))\n"
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
    wrong = [
        "both = None",
        "def both(nums):\n    return 1",
        "",
        "def both(nums, by):\n    return {1} if by else 0",
    ]
    found = judged(BOTH, answer(SOLUTION), answer(FUNCTION), answer(GUARDED), *map(answer, wrong))
    assert [each.outcome for each in found] == ["right"] * 3 + ["wrong"] * 4


@pytest.mark.parametrize("entry", ["gcd", "add", "factorial", "len"])
def test_what_graders_give_is_no_solution(entry):
    task = ProgramTask([Test("[6, 4]" if entry in ("gcd", "add") else "[3]", "2")], "function", entry, "json")
    assert judged(task, answer("pass"))[0].outcome == "wrong"


def test_arguments_may_be_literals_and_results_of_other_types():
    task = ProgramTask([Test("[{1: (2, 3)}]", "[2, 3]")], "function", "get", "json")
    returns = ["d[1]", "deque(d[1])", "range(2, 4)", "map(int, d[1])", "__import__('numpy').array(d[1])"]
    texts = [answer(f"def get(d):\n    assert hash(d[1])\n    return {each}") for each in returns]
    assert [each.outcome for each in judged(task, *texts)] == ["right"] * len(returns)


def test_the_reward_is_all_or_a_share():
    half = answer("n = int(input())\nprint(n * 2 if n % 2 == 0 else 7)")
    (whole,) = judged(DOUBLES, half)
    (share,) = judged(DOUBLES, half, share=True)
    assert (whole.reward, whole.outcome, whole.metrics["tests_passed"]) == (0.0, "wrong", 1.0)
    assert "printed '7\\n'; expected" in whole.reason
    assert (share.reward, share.outcome, share.metrics["test_share"]) == (0.5, "wrong", 0.5)


def test_a_submission_has_a_limit_of_its_own():
    many = ProgramTask([Test(str(n), str(n)) for n in range(20)])
    (found,) = judged(many, answer("while True:\n    pass"), cpu_s=0.2, submission_cpu_s=0.3, share=True)
    assert found.outcome == "undecided:time"
    assert found.metrics["program_s"] < 20 * 0.2 / 2


def test_the_limit_of_the_output_is_needed():
    text = answer("print(10)\nprint('\\n' * 70000)")
    assert judged(TASK, text)[0].outcome == "undecided:output"
    assert judged(TASK, text, output_bytes=1 << 20)[0].outcome == "right"


def test_an_answer_without_a_program_and_a_task_that_is_none():
    (found,) = judged(TASK, "no program")
    assert found.outcome == "no_answer"
    with pytest.raises(VerifierError, match="cannot be read"):
        judged(b"\x80pickle", INNOCENT)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_template_that_dies_or_stops_is_replaced_and_the_test_is_run_again(monkeypatch, number):
    monkeypatch.setattr(pool, "PATIENCE_S", 1.0)
    monkeypatch.setattr(pool, "PATIENCE", 1)

    async def struck():
        async with verifier(cpu_s=2.0) as judge:
            template = template_of_this()
            text = answer("import time\ntime.sleep(0.3)\nprint(10)")
            judging = asyncio.create_task(judge.judged(TASK, text))
            while not (template.children() or judging.done()):
                await asyncio.sleep(0)
            template.send_signal(number)
            return (await judging).outcome, (await judge.judged(TASK, INNOCENT)).outcome

    assert asyncio.run(struck()) == ("right", "right")


def test_sleep_counts_towards_the_limit_of_a_submission():
    sleeps = answer("import time\ntime.sleep(0.5)\nprint(2 * int(input()))")
    (found,) = judged(DOUBLES, sleeps, cpu_s=0.9, submission_cpu_s=0.9)
    assert found.outcome == "undecided:time" and found.metrics["tests_passed"] >= 2


def test_cpu_time_decides_whatever_the_status_says():
    programs = Programs(None, cpu_s=1.0, output_bytes=10)
    assert programs._ran(b"", Ended(1, 0, 1.1, 0)).why_not == "time"
    assert programs._ran(b"", Ended(1, 0, 0.9, 0)).is_fine


def test_many_at_once_leave_no_descriptor():
    async def many():
        async with verifier() as judge:
            found = await asyncio.gather(*(judge.judged(TASK, INNOCENT) for _ in range(20)))
            return [each.outcome for each in found]

    before = len(os.listdir("/proc/self/fd"))
    assert asyncio.run(many()) == ["right"] * 20
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cpu_s": 0}, "programs.cpu_s=0 must be a positive number"),
        ({"cpu_s": "four"}, "programs.cpu_s=four must be"),
        ({"output_bytes": 1.5}, "programs.output_bytes=1.5 must be a positive whole number"),
        ({"cpu_s": 5, "submission_cpu_s": 4}, "programs.submission_cpu_s=4 is less than cpu_s=5"),
        ({"share": "maybe"}, "programs.share=maybe must be true or false"),
        ({"language": "cpp"}, "programs.language=cpp is no list of python, cpp"),
        ({"language": ["java"]}, "is no list of python, cpp"),
    ],
)
def test_wrong_options_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
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
        ("```python\na\n```\nprints\n```\n10\n```", "a\n"),
        ("1. so\n  ```python\n  a\n    b\n  ```", "a\n  b\n"),
        ("```python3.11\na\n```", "a\n"),
        ("```{python}\na\n```", "a\n"),
        ("```pypy-notes\na\n```", None),
        ("a ```python\nb\n```", None),
        ("~" * 2**20 + "`", None),  # in linear time: else it hangs
        ("```" + " " * 2**20 + "`", None),
        ("```python\r\na\r\n```\r\n", "a\r\n"),
    ],
)
def test_the_last_block_of_python_is_the_program(text, program):
    found = program_in(text, ["python"])
    assert found == (program and ("python", program))


@pytest.mark.parametrize("name", ["cpp", "C++", "c++17", "cc", "cxx", "CPP title=x"])
def test_blocks_of_cpp_are_found_by_name(name):
    text = f"```python\na\n```\n```{name}\nb\n```\n```c\nc\n```\n```\nd\n```"
    assert program_in(text, ["python", "cpp"]) == ("cpp", "b\n")
    assert program_in("```\nd\n```", ["cpp"]) == ("cpp", "d\n")


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
        ("floats", "3.0000001", "3", False),
        ("floats", "1000000008", "1000000007", False),
        ("json", "[1, 2.0000001]", "[1.0, 2.0]", True),
        ("json", "1000000008.0", "1000000007", False),
        ("json", "3.0", "3", True),
        ("json", "true", "1", True),
        ("json", '{"a": [1]}', '{"a": [1]}', True),
        ("json", "no json", "1", False),
        ("json", "[" * 200 + "]" * 200, "[" * 199 + " []" + "]" * 199, False),
        ("json", "1" + "0" * 400, "1.0", False),
        ("wrapped", "3", "[3]", True),
        ("wrapped", "[3]", "[3]", True),
        ("wrapped", "4", "[3]", False),
    ],
)
def test_outputs_are_compared(compare, output, expected, equal):
    assert COMPARISONS[compare](output, expected) is equal


def test_the_level_is_the_one_that_is_asked_for():
    async def outcome(level):
        async with verifier(level=level) as judge:
            return (await judge.judged(TASK, answer("open('/etc/passwd')\nprint(10)"))).outcome

    assert asyncio.run(outcome(Level.SEALED)) == "undecided:files"
    assert asyncio.run(outcome(Level.PROCESS)) == "right"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root looks into a process that nobody may look into")
def test_no_memory_or_descriptor_of_a_program_holds_what_is_expected():
    mark = f"expected-{os.urandom(8).hex()}"
    task = ProgramTask([Test("1", mark)]).encoded()

    async def looked_at():
        async with verifier(cpu_s=HANG_S, submission_cpu_s=HANG_S) as judge:
            template = template_of_this()
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
