"""Makes the model of the CPU demo: python -m pipelinerl.demo_model --out DIR [--from SUMS] [--seed N]

A Qwen2 of 0.8 M parameters that knows one task (conf/domain/reasoning_gym.yaml: sums of two numbers of one
or two digits) and is unreliable at it. Two to three minutes on two cores; a finished one is kept.

What it is not: a model that learns arithmetic by reinforcement. It is first taught the task with plain
supervision, until it solves nearly all held-out problems; then it is trained on purpose on solutions of
which most are wrong by a plausible amount. What RL then finds again, in seconds, is the reliability it
had: a sparse reward does not teach a model an algorithm it does not know in the minutes of a demo.

With --from SUMS, a finished one, a model for conf/domain/thinking_sums.yaml in a minute or two: it answers
after thinking of a random length, and reads past a length that a prompt may name. To keep to one is
something that it was never taught.
"""

import argparse
from pathlib import Path

from pipelinerl.demo_model.build import build, build_thinking


def main() -> None:
    parser = argparse.ArgumentParser(prog="pipelinerl.demo_model", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory of the model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", dest="sums", type=Path, help="a finished one, which is to learn to think")
    arguments = parser.parse_args()
    if arguments.sums:
        build_thinking(arguments.out, arguments.sums, arguments.seed)
    else:
        build(arguments.out, arguments.seed)


if __name__ == "__main__":
    main()
