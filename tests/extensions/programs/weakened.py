"""The template of programs without a defence: python -m tests.extensions.programs.weakened DEFENCE"""

import sys

from extensions.programs import boxes, running, template
from pipelinerl.judging.isolation import landlock, limits, seccomp


def nothing(*_, **__):
    return None


def keep_modules():
    running.OURS = ()


def keep_environment():
    running.ENVIRONMENT = tuple(running.os.environ)


def keep_descriptors():
    template.close_all_but = nothing


def no_memory_limit():
    limits.resource.RLIMIT_AS = limits.resource.RLIMIT_CORE


def no_filter():
    boxes.Boxes._calls = lambda _: ()


def large_disk():
    boxes.DISK_BYTES = 1 << 30
    limits.resource.RLIMIT_FSIZE = limits.resource.RLIMIT_CORE


DEFENCES = {
    "a view of the files": lambda: setattr(boxes, "SYSTEM", (*boxes.SYSTEM, "/etc/passwd")),
    "a filter of calls": no_filter,
    "a size of the disk": large_disk,
    "files": lambda: setattr(landlock, "restrict", nothing),
    "calls": lambda: setattr(seccomp, "restrict", nothing),
    "memory": no_memory_limit,
    "time": lambda: setattr(template.ProgramTemplate, "look", nothing),
    "threads": lambda: setattr(template, "MOST_THREADS", 10**9),
    "modules": keep_modules,
    "environment": keep_environment,
    "descriptors": keep_descriptors,
}

if __name__ == "__main__":
    DEFENCES[sys.argv[1]]()
    template.main()
