"""Makes a demo model.

    python -m extensions.demo NAME [--out DIR] [--seed N]

Each is a Qwen2 or, hybrid, a Qwen3.5 with 0.8 M parameters in half precision, and takes a few minutes on two
cores. An existing model is kept unless its recipe has changed.

* sums: the demo's model, which ships with the project (extensions/demo/checkpoints/sums). It adds two numbers
  of one or two digits (domain=reasoning_gym), unreliably.
* hybrid: the sums model with recurrent layers, a Qwen3.5.
* thinking: adds numbers after thinking of a random length (domain=thinking_sums). It is trained from the
  finished sums model: --from SUMS.
* guessing: finds a number by binary search, with errors (domain=guessing).
* expressions: writes an expression in x from three of its values, with errors (domain=expressions).
* word_problems: answers short word problems in a box, without reasoning and seldom right (domain=math).

RL does not teach the first five models their task: supervised training does, until they solve nearly all
held-out problems. They are then trained on plausible wrong solutions, and RL restores their reliability. In
the minutes of a demo, a sparse reward does not teach an algorithm that a model does not know.
"""

from pathlib import Path

from contracts.support.command_line import command_parser
from contracts.support.messages import one_line
from extensions.demo.registry import DEMO_MODELS, SEED, Demo
from pipelinerl.errors import PlanError


def main() -> None:
    """Runs the command."""
    parser = command_parser("extensions.demo", __doc__)
    parser.add_argument("name", choices=DEMO_MODELS)
    parser.add_argument("--out", type=Path, help="directory of the model; by default the one used by runs")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--from", dest="begins_with", type=Path, help="the finished model to start from")
    arguments = parser.parse_args()
    demo_model = DEMO_MODELS[arguments.name]
    if arguments.begins_with and not demo_model.begins_with:
        parser.error(f"{arguments.name} begins with nothing: leave out --from")
    own = arguments.out is not None or arguments.seed != SEED
    if demo_model.begins_with and own and not arguments.begins_with:
        parser.error(
            f"{arguments.name} starts from {demo_model.begins_with}: with --out or --seed, give --from too"
        )
    try:
        Demo(arguments.name).make(arguments.out, arguments.seed, arguments.begins_with)
    except (PlanError, ValueError) as error:
        parser.error(one_line(error))


if __name__ == "__main__":
    main()
