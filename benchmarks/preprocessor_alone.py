"""Runs the preprocessor of a run directory to its end and prints the CPU seconds and the peak memory of that.

`benchmarks.preprocess` starts it as a file, so that it can measure the code of another checkout.
"""

import json
import sys
import time
from pathlib import Path

from pipelinerl.config import load_config
from pipelinerl.preprocessor import Preprocessor


def main(run: Path) -> None:
    preprocessor = Preprocessor(load_config(run), run, None)
    began = time.process_time()
    preprocessor.run()
    cpu_s = time.process_time() - began
    peak_kib = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    print(json.dumps({"cpu_s": cpu_s, "peak_mib": peak_kib / 1024}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
