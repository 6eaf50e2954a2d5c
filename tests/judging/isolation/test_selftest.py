"""The self-test claims a level where all of it holds, and says what is missing where it does not."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pipelinerl.judging.isolation import (
    Confinement,
    Level,
    Limits,
    clean_environment,
    drop_privileges,
    imported_paths,
    landlock,
    limits,
    privileges,
    seccomp,
    selftest,
    strongest_level,
)
from pipelinerl.judging.isolation.environment import FIXED
from pipelinerl.judging.isolation.selftest import ENDED, PROGRAMS, REFUSED, outcome, why_not_sealed

NOBODY = (privileges.NOBODY,) * 3
ROOT = Path(__file__).resolve().parents[3]
LIMITS = Limits(memory_bytes=1 << 28)
BY_LANDLOCK = {"read a file", "write beside a file", "write in /tmp"}
BY_SECCOMP = {"change a file's mode", "open a datagram socket", "start a process", "make a file in memory"}


def nothing(*_: object, **__: object) -> None: ...


def got_through(reason: str) -> set[str]:
    assert reason.startswith("hostile programs could: ")
    return set(reason.removeprefix("hostile programs could: ").split(", "))


def test_this_machine_has_the_level_that_its_self_test_says():
    level, reason = strongest_level(imported_paths())
    assert (level is Level.SEALED) == (reason == "")
    assert why_not_sealed(imported_paths()) == reason


def test_every_program_of_the_self_test_does_what_it_says_where_nothing_is_confined(monkeypatch):
    for name in ("no_new_privileges", "drop_capabilities", "undumpable"):
        monkeypatch.setattr(privileges, name, nothing)
    monkeypatch.setattr(Limits, "apply", nothing)
    monkeypatch.setattr(landlock, "restrict", nothing)
    monkeypatch.setattr(seccomp, "restrict", nothing)
    assert len(PROGRAMS) == 12
    without_listener = {"open a TCP socket"}  # nobody listens on its port
    assert got_through(why_not_sealed(imported_paths())) >= PROGRAMS.keys() - without_listener


@pytest.mark.parametrize(("module", "found"), [(landlock, BY_LANDLOCK), (seccomp, BY_SECCOMP)])
def test_without_one_defence_the_programs_that_it_holds_get_through(monkeypatch, module, found):
    monkeypatch.setattr(module, "restrict", nothing)
    assert got_through(why_not_sealed(imported_paths())) == found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to give up")
def test_without_capabilities_given_up_the_environment_of_roots_processes_is_read(monkeypatch):
    program = PROGRAMS["read the parent's environment"]
    process = Confinement(Level.PROCESS, LIMITS, [])
    assert outcome(process, program, "") == REFUSED
    monkeypatch.setattr(privileges, "drop_capabilities", nothing)
    assert outcome(process, program, "") == ENDED


@pytest.mark.parametrize(
    ("program", "limit"),
    [
        ("bytearray(1 << 29)", "RLIMIT_AS"),
        ("f = open(secret, 'w'); f.write('x'); f.flush()", "RLIMIT_FSIZE"),
        ("x = [open('/dev/null') for _ in range(100)]", "RLIMIT_NOFILE"),
    ],
)
def test_without_a_limit_its_program_gets_through(monkeypatch, tmp_path, program, limit):
    secret = str(tmp_path / "secret")
    process = Confinement(Level.PROCESS, LIMITS, [])
    assert outcome(process, program, secret) == REFUSED
    limited = limits._limit
    number = getattr(limits.resource, limit)
    monkeypatch.setattr(limits, "_limit", lambda kind, *values: kind == number or limited(kind, *values))
    assert outcome(process, program, secret) != REFUSED


def test_a_process_of_a_user_starts_no_other_at_level_process():
    """Root is exempt in the kernel, so it is nobody here where the tests run as root."""
    process = Confinement(Level.PROCESS, LIMITS, [])
    user = os.geteuid() or privileges.NOBODY
    child = os.fork()
    if not child:
        os.setresuid(user, user, user)
        try:
            process.enter()
            os.fork()
        except BlockingIOError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("denied_here", "words"),
    [
        ("landlock.CREATE_RULESET = 10**6", "this kernel, or this container, has no Landlock"),
        ("sys.modules['pyseccomp'] = None", "libseccomp cannot be used"),
        ("seccomp.MODE_FILTER = 99", "the level cannot be entered"),
        ("landlock.RESTRICT_SELF = 10**6", "the level cannot be entered"),
    ],
)
def test_the_level_is_process_where_the_kernel_or_a_library_denies_the_other(denied_here, words):
    code = f"""
        import sys
        from pipelinerl.judging.isolation import imported_paths, landlock, seccomp, selftest
        {denied_here}
        print(selftest.why_not_sealed(imported_paths()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert words in done.stdout


def test_a_self_test_that_fails_claims_nothing(monkeypatch):
    monkeypatch.setattr(selftest, "clean_environment", lambda _: {"PYTHONHOME": "/nonexistent"})
    level, reason = strongest_level([])
    assert level is Level.PROCESS
    assert reason


def test_a_container_that_denies_landlock_by_seccomp_gets_level_process():
    code = """
        import errno, pyseccomp
        from pipelinerl.judging.isolation import imported_paths, strongest_level
        rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        rules.add_rule(pyseccomp.ERRNO(errno.EPERM), "landlock_create_ruleset")
        rules.load()
        print(*strongest_level(imported_paths()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "process this kernel, or this container, has no Landlock\n"


def test_a_process_with_threads_is_not_confined():
    code = """
        import threading
        from pipelinerl.judging.isolation import Level, Limits, confine
        threading.Thread(target=input, daemon=True).start()
        try:
            confine(Level.PROCESS, Limits(1 << 28), [])
        except OSError as error:
            print(error.strerror, flush=True)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "a process with several threads cannot be confined\n"
        process.kill()


def test_an_environment_is_made_from_nothing(monkeypatch):
    monkeypatch.setenv("PIPELINERL_TOKEN", "secret")
    monkeypatch.setenv("HOME", "/home/somebody")
    environment = clean_environment({"MINE": "1"})
    assert "secret" not in environment.values()
    assert environment.keys() <= {"PATH", "LANG", "PYTHONPATH", "MINE", *FIXED}
    assert (environment["MINE"], environment["HOME"]) == ("1", "/nonexistent")


def test_what_is_read_is_packages_and_no_directory_that_holds_them():
    paths = imported_paths()
    assert str(ROOT / "pipelinerl") in paths
    assert not any(path == ROOT or ROOT.is_relative_to(path) for path in paths)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_root_becomes_nobody_where_nobody_can_import():
    code = """
        import ctypes, os
        from contracts.support.die_with_parent import die_with_parent
        from pipelinerl.judging.isolation import drop_privileges, privileges
        {imports}
        die_with_parent()
        print(drop_privileges("pipelinerl.judging.worker"), os.getresuid(), os.getresgid(), os.getgroups())
        ctypes.CDLL(None).prctl(2, ctypes.byref(signal := ctypes.c_int()))  # PR_GET_PDEATHSIG
        print(signal.value)
    """
    for imports, printed in (
        ("privileges._imports_as_nobody = lambda _: True", f"None {NOBODY} {NOBODY} []"),
        ("privileges._imports_as_nobody = lambda _: False", "judging stays root"),
    ):
        text = textwrap.dedent(code).format(imports=imports)
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(printed)
        assert done.stdout.splitlines()[-1] == "9"  # it ends with its parent, whoever it has become


def test_another_user_than_root_stays_what_it_is(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert drop_privileges("pipelinerl.judging.worker") is None
