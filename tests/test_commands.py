"""Every command says with --help what it does, and how it is typed."""

import re
from importlib.util import find_spec

import pytest

from pipelinerl.launcher.composing.choices import COMMANDS, described_commands
from pipelinerl.paths import ROOT
from tests.forked import Forked
from tests.limits import HANG_S

PACKAGES = (
    "benchmarks",
    "contracts",
    "examples",
    "extensions",
    "inference_adapters",
    "pipelinerl",
    "trainer_adapters",
)
STARTED_BY_PROGRAMS = {  # no commands: what they are given is another program's to say
    "benchmarks.gpu_check.inside",
    "benchmarks.trl.grpo",
    "benchmarks.volunteers.cheater",
    "benchmarks.vllm_reload",
    "inference_adapters.sglang.launcher",
    "pipelinerl.launcher.adopted_server",
    "pipelinerl.judging.isolation.selftest",
    "pipelinerl.judging.worker",
    "extensions.agents.programs.selftest",
    "extensions.agents.programs.template",
    "extensions.agents.verifiers.verifiers_worker",
    "extensions.programs.template",
    "pipelinerl.launcher.executors.guard",
    "extensions.cluster.on_ray.cluster",
}
NEEDS = {"extensions.viewer.parquet": "pyarrow"}
AT_A_TIME = 3


def runnable_modules() -> list[str]:
    """The modules that are run as programs."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    is_run = re.compile(r'^if __name__ == "__main__":', re.MULTILINE)
    runnable = [file for file in files if is_run.search(file.read_text())]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in runnable]
    return [name.removesuffix(".__main__") for name in names]


def commands() -> list[str]:
    without = STARTED_BY_PROGRAMS | {"examples.minimal_loop"}  # takes no arguments
    names = [name for name in runnable_modules() if name not in without]
    return [name for name in names if name not in NEEDS or find_spec(NEEDS[name])]


def is_benchmark(name: str) -> bool:
    return name.startswith("benchmarks.")


def test_every_command_has_help_with_an_example():
    assert {*COMMANDS.split()} <= {*commands(), *NEEDS}
    assert faults_of([name for name in commands() if not is_benchmark(name)]) == []


@pytest.mark.engines
def test_every_benchmark_has_help_with_an_example():
    assert faults_of([name for name in commands() if is_benchmark(name)]) == []


def faults_of(names: list[str]) -> list[str]:
    faults = []
    for begin in range(0, len(names), AT_A_TIME):
        helps = {name: Forked("-m", name, "--help") for name in names[begin : begin + AT_A_TIME]}
        faults += [line for name, help in helps.items() if (line := fault_of(name, help))]
    return faults


def fault_of(name: str, help: Forked) -> str | None:
    """What is wrong with the help of a command, or None."""
    printed, errors = help.communicate(timeout=HANG_S)
    if help.returncode != 0:
        return f"{name}: exit status {help.returncode}: {errors[-200:]}"
    path = f"python {name.replace('.', '/')}.py"
    return None if f"-m {name} " in printed or path in printed else f"{name}: no example in {printed[:200]!r}"


@pytest.mark.parametrize(("command", "sentence"), [*described_commands()])
def test_a_command_is_listed_with_a_sentence(command, sentence):
    assert re.fullmatch(r"[A-Z].*\.", sentence) and "python -m" not in sentence
    assert sentence.split()[0].endswith("s") and len(sentence.split()) <= 25


def test_programs_that_are_no_commands_are_there():
    assert {*runnable_modules()} >= STARTED_BY_PROGRAMS
