"""The level `namespaces`: C++, what is refused where the level is missing, and what it is made of."""

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from re import fullmatch

import psutil
import pytest

from extensions.programs import boxes, cpp, namespaces, pool
from extensions.programs.cpp import Cpp
from extensions.programs.messages import Box
from extensions.programs.tasks import ProgramTask, Test
from pipelinerl.judging.isolation import Limits
from pipelinerl.judging.template import TemplateError, WorkerLostError
from tests.extensions.programs.test_corpora import HONEST, TASK, is_template, outcomes, verifier

pytestmark = pytest.mark.engines

SUM = "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n * (n - 1) / 2; }"
CPP = {
    SUM: "right",
    SUM.replace("iostream", "bits/stdc++.h"): "right",
    SUM.replace("n - 1", "n"): "wrong",
    SUM.replace("n - 1) / 2;", "n - 1) / 2; return 3;"): "wrong",
    "int main() {": "wrong",
    '#include "/dev/zero"\n' + SUM: "undecided:memory",
    '#if __has_include("/etc/passwd")\n' + SUM + "\n#endif": "wrong",
    "#include __FILE__\n#include __FILE__\n" + SUM: "wrong",
    "template<int N> struct T { static const int v = T<N + 1>::v; };\nint main() { T<0>::v; }": "wrong",
    "template<int N, int M> struct T { static const int v = T<N - 1, 2 * M>::v\n"
    "+ T<N - 1, 2 * M + 1>::v; };\n"
    "template<int M> struct T<0, M> { static const int v = 1; };\n"
    "int main() { return T<40, 0>::v; }": "undecided:(time|memory)",
    "int main() { for (volatile int i = 0;;) i++; }": "undecided:time",
    '#include <fstream>\nint main() { if (!std::ifstream("/etc/passwd")) return 1; puts("10"); }': "wrong",
    '#include <unistd.h>\n#include <cstdio>\nint main() { if (fork() <= 0) return 1; puts("10"); }': "wrong",
    '#include <cstdio>\nint main() { for (;;) puts("10"); }': "undecided:output",
    '#include <cstdio>\nint main() { FILE *f = fopen("/dev/stdin", "r"); int n; fscanf(f, "%d", &n); '
    'FILE *g = fopen("made", "w+"); fputs("10", g); rewind(g); fscanf(g, "%d", &n); '
    'printf("%d", n); }': "right",
}


def fenced(source, language="cpp"):
    return f"```{language}\n{source}\n```"


def outcomes_of(texts, task=TASK, **options):
    async def judged():
        async with verifier("both", language=["python", "cpp"], cpu_s=1.0, **options) as judge:
            return [(await judge.judged(task, text)).outcome for text in texts]

    return asyncio.run(judged())


def test_programs_of_cpp():
    found = zip(CPP.items(), outcomes_of(map(fenced, CPP)), strict=True)
    assert {source: outcome for (source, right), outcome in found if not fullmatch(right, outcome)} == {}


def test_the_last_block_of_any_language_is_the_program_and_functions_are_python():
    python = fenced("print(11)", "python")
    assert outcomes_of([python + "\n" + fenced(SUM, "C++17"), fenced(SUM) + "\n" + python]) == [
        "right",
        "wrong",
    ]
    of_function = ProgramTask([Test("[2]", "4")], "function", "double", "json").encoded()
    texts = [fenced("def double(n): return 2 * n", "python"), fenced("int double_(int n) { return 2 * n; }")]
    assert outcomes_of(texts, of_function) == ["right", "no_answer"]


@asynccontextmanager
async def compiler():
    cpp = Cpp(Limits(1 << 30), 1.0, 1 << 16)
    try:
        await cpp.start()
        yield cpp
    finally:
        await cpp.close()


def test_one_source_is_compiled_once():
    async def compiled():
        async with compiler() as cpp:
            before = cpp.compilations
            first, other = await asyncio.gather(*(cpp.compiled(SUM.encode()) for _ in range(2)))
            again = await cpp.compiled(SUM.encode())
            return cpp.compilations - before, first.output == other.output == again.output

    assert asyncio.run(compiled()) == (1, True)


def test_what_is_kept_of_the_compiler_is_bounded(monkeypatch):
    monkeypatch.setattr(cpp, "KEPT_BYTES", 3 * cpp.ENTRY_BYTES)

    async def kept():
        async with compiler() as made:
            for number in range(5):
                await made.compiled(f"no program {number}".encode())
            return len(made._kept)

    assert asyncio.run(kept()) == 3


@pytest.mark.parametrize("part", ["cc1plus", "ld", "g++"])
def test_a_compiler_that_is_killed_is_no_verdict_and_is_asked_again(part):
    async def killed():
        async with compiler() as made:
            compiling = asyncio.create_task(made.compiled(SUM.replace("iostream", "bits/stdc++.h").encode()))
            while not compiling.done() and not kill_one(part):
                await asyncio.sleep(0)
            return await compiling

    assert asyncio.run(killed()).is_fine


def kill_one(name):
    """Kills a descendant of this process with this name. Returns False if there is none."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.name() == name:
                process.kill()
                return True
    return False


def test_what_is_closed_starts_nothing_more():
    async def closed():
        async with compiler() as made:
            compiling = asyncio.create_task(made.compiled(SUM.encode()))
            while not made._compiler._template._ended:
                await asyncio.sleep(0)
            await made.close()
            with pytest.raises(WorkerLostError):
                await compiling
        return [each for each in psutil.Process().children() if is_template(each)]

    assert asyncio.run(closed()) == []


GUESSES = {
    "a refusal that is caught": "try:\n    open('x', 'w')\n    print('YES')\nexcept OSError: print('NO')",
    "what a box has": "import os\nprint('YES' if os.path.exists('/judged') else 'NO')  # open",
}


@pytest.mark.parametrize("name", GUESSES)
def test_a_program_has_one_guess(name):
    texts = [fenced(GUESSES[name], "python")]
    tasks = [ProgramTask([Test("", expected)]).encoded() for expected in ("YES", "NO")]
    assert sorted(outcomes_of(texts, task)[0] for task in tasks) == ["right", "wrong"]


def test_programs_that_write_files_are_right_wherever_they_run_first():
    writing = [program for program in HONEST if "files" in program.outcome]

    async def judged():
        async with verifier("both") as judge:
            return await outcomes(judge, writing)

    assert set(asyncio.run(judged()).values()) == {"right"}


@pytest.mark.parametrize("missing", ["bwrap", "g++"])
def test_what_cannot_run_is_refused(monkeypatch, missing):
    monkeypatch.setattr(boxes.shutil, "which", lambda name: None if name == missing else f"/usr/bin/{name}")
    with pytest.raises(OSError, match=missing.replace("+", r"\+")):
        boxes.Boxes(Box.COMPILER, Limits(1 << 30), [])


REFUSED = (
    "refused: judging: code runs what the model wrote, and the level would be process: this kernel, or this "
    "container, has no Landlock; judging.require=process runs it all the same"
)
NO_CPP = "refused: judging: programs.language has cpp, which cannot run here: OSError: bwrap: "


@pytest.mark.parametrize(
    ("denied", "expected"),
    [("namespaces", ["right", "undecided:files", NO_CPP]), ("landlock", [REFUSED, REFUSED])],
)
def test_a_kernel_that_denies_a_part_degrades_the_level(denied, expected):
    command = [sys.executable, "-m", "tests.extensions.programs.denied", denied]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert [line[: len(words)] for line, words in zip(said, expected, strict=True)] == expected


@pytest.mark.parametrize("defence", ["a view of the files", "a filter of calls", "a size of the disk"])
def test_without_a_defence_of_a_box_hostile_programs_get_through(monkeypatch, defence):
    command = (sys.executable, "-m", "tests.extensions.programs.weakened", defence)
    monkeypatch.setattr(pool, "COMMAND", command)
    with pytest.raises(TemplateError, match="hostile programs could"):
        asyncio.run(namespaces.check())


def test_the_level_says_what_it_lacks():
    async def level(place):
        async with verifier(place) as judge:
            return judge.level

    assert asyncio.run(level("sealed")).startswith(
        "programs cannot write files: OSError: there is no bubblewrap"
    )
    assert asyncio.run(level("both")) == "programs that write files run at namespaces"
