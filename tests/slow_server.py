"""A scripted server for tests that takes its time to load: python -m tests.slow_server --until FILE ...

It listens, and answers nothing, until FILE exists. Without --until it ends at once, with status 1.
"""

import os
import socket
import sys
import time
from pathlib import Path


def main() -> None:
    arguments = sys.argv[1:]
    if "--until" not in arguments:
        sys.exit(1)
    at = arguments.index("--until")
    file = Path(arguments[at + 1])
    del arguments[at : at + 2]
    port = int(arguments[arguments.index("--port") + 1])
    with socket.create_server(("127.0.0.1", port), reuse_port=True):
        while not file.exists():
            time.sleep(0.05)
    os.execv(sys.executable, [sys.executable, "-m", "inference_adapters.scripted", *arguments])


if __name__ == "__main__":
    main()
