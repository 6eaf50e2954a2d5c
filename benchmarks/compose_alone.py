"""Composes the configuration of a run from its settings and saves it in a file.

`benchmarks.preprocess` starts it as a file, so that another checkout composes its own.
"""

import sys
from pathlib import Path

from pipelinerl.config import save_config
from pipelinerl.launcher.compose import compose_config


def main(file: Path, settings: list[str]) -> None:
    try:
        save_config(compose_config(settings), file)
    except Exception as error:  # the types of errors depend on the checkout
        sys.exit(f"it refuses the settings: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
