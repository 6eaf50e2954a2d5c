"""Makes a demo model.

    python -m extensions.demo NAME [--out DIR] [--seed N]

A Qwen2 of 0.8 M parameters, in half precision; a few minutes on two cores. A finished one is kept, and made
again where its recipe has changed.

* sums: the demo's, which is part of the project (extensions/demo/checkpoints/sums). It knows one task
  (domain=reasoning_gym: sums of two numbers of one or two digits) and is unreliable at it.
* thinking: the same, after thinking of a random length (domain=thinking_sums), from the finished
  model of the sums: --from SUMS.
* guessing: finds a number by halving what is left, and makes errors (domain=guessing).
* word_problems: answers short word problems in a box, at once, and is seldom right (domain=math).

What the first three are not: models that learn a task by reinforcement. They are first trained on it with
plain supervision, until they solve nearly all held-out problems. Then they are trained on purpose on
solutions that are wrong by a plausible amount. RL then restores the reliability that they had. In the minutes
of a demo, a sparse reward does not teach a model an algorithm that it does not know.
"""

from pathlib import Path

from contracts.support.command_line import command_parser
from contracts.support.messages import one_line
from extensions.demo.registry import DEMO_MODELS, SEED, Demo
from pipelinerl.errors import PlanError


def main() -> None:
    """Makes the demo model that the command line names."""
    parser = command_parser("extensions.demo", __doc__)
    parser.add_argument("name", choices=DEMO_MODELS)
    parser.add_argument("--out", type=Path, help="directory of the model; by default the one that runs use")
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
