"""A program that prints what it finds as a process, so that two ways to start it can be compared."""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from pipelinerl.launcher.executors.guard import living_parent


def numbers() -> list[int]:
    """Returns a random number of each library that has its own state."""
    import numpy
    import torch

    return [int(numpy.random.randint(1 << 30)), torch.initial_seed()]


def threads() -> int:
    import torch

    return torch.get_num_threads()


def status(name: str) -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(name))


def files() -> list[str]:
    """Returns what the descriptors refer to that are not led nowhere, beside this listing's own."""
    found = [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)]
    for number in os.listdir("/proc/self/fd"):
        if int(number) > 2 and Path(f"/proc/self/fd/{number}").exists():
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted({name.split(":")[0] for name in found if not name.startswith("/proc/")})


def description() -> dict[str, object]:
    return {
        "argv": sys.argv[1:],
        "command line": Path("/proc/self/cmdline").read_text(),
        "environment": dict(sorted(os.environ.items())),
        "shown environment": sorted(Path("/proc/self/environ").read_text().strip("\0").split("\0")),
        "files": files(),
        "path": sys.path,
        "ignored": status("SigIgn"),
        "blocked": status("SigBlk"),
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
        "leads its session": os.getsid(0) == os.getpid(),
        "output": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors, sys.stdout.write_through],
        "name": [__name__, __spec__.name, sys.modules["__main__"].__spec__.name, sys.argv[0]],
        "threads": threads(),
        "has a parent": living_parent(str(os.getpid())) is not None,
    }


def end(how: str) -> None:
    """Ends as the argument says."""
    atexit.register(lambda: print("at the end of", sys.modules["__main__"].__spec__.name, sys.argv))
    match how:
        case "status":
            sys.exit(3)
        case "message":
            sys.exit("why it ends")
        case "error":
            raise RuntimeError("no more")
        case "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        case "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        case "asked":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
            subprocess.Popen(["setsid", "sleep", "1000"])
            signal.pause()
        case "thread":
            threading.Timer(0.05, print, ["in a thread"]).start()


if __name__ == "__main__":
    if sys.argv[1] == "describe":
        print(json.dumps(description()))
    elif sys.argv[1] == "draw":
        print(*numbers())
    else:
        end(sys.argv[1])
