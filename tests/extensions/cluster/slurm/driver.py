"""Stands in for launch.py: it waits for the nodes it is given, and writes its arguments to a file."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import ray

settings = dict(argument.split("=", 1) for argument in sys.argv[1:])
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")
while len(nodes := [node for node in ray.nodes() if node["Alive"]]) < int(settings["nodes"]):
    time.sleep(0.1)
facts = {"arguments": sys.argv[1:], "gpus": sorted(node["Resources"].get("GPU", 0) for node in nodes)}
said = Path(settings["run_dir"]).with_suffix(".json")
said.with_suffix(".new").write_text(json.dumps(facts))
said.with_suffix(".new").rename(said)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
while True:
    signal.pause()
