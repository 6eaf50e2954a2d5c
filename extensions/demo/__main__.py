"""Makes a demo model.

    python -m extensions.demo NAME [--out DIR] [--seed N]

The models are Qwen2 of 0.8 M parameters, in half precision. One takes a few minutes on two cores. A finished
model is kept until its recipe changes.

* sums: the model of the demo, which is part of the project (extensions/demo/checkpoints/sums). Its task is
  domain=reasoning_gym: sums of two numbers of one or two digits.
* thinking: the same after thinking of a random length (domain=thinking_sums). It starts from the finished
  model of the sums: --from SUMS.
* guessing: finds a number by binary search, with errors (domain=guessing).
* word_problems: answers short word problems in a box, without reasoning, and is rarely right (domain=math).

The first three have learnt their task by supervision, until they solved nearly all held-out problems. Then
they were trained on solutions that are wrong by a plausible amount. RL only restores their reliability. In
the minutes of a demo, a sparse reward does not teach a model an unknown algorithm.
"""

from pathlib import Path

from contracts.support.command_line import command_parser
from contracts.support.messages import one_line
from extensions.demo.registry import DEMO_MODELS, SEED, Demo
from pipelinerl.errors import PlanError


def main() -> None:
    """Makes a demo model."""
    parser = command_parser("extensions.demo", __doc__)
    parser.add_argument("name", choices=DEMO_MODELS)
    parser.add_argument("--out", type=Path, help="directory of the model; default: the one that runs use")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--from", dest="begins_with", type=Path, help="finished model to start from")
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
