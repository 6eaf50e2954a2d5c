"""Serves a model by SGLang behind the contract.

    python -m inference_adapters.sglang --model PATH --port 8000

It also takes the options of SGLang's server, except those that the contract fixes.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from contracts.support.messages import first_line
from inference_adapters.serve import arguments, run
from inference_adapters.sglang import KNOWN_VERSIONS
from inference_adapters.sglang.cpu_stubs import install_cpu_stubs


def main() -> None:
    """Starts the server, or exits with a message if SGLang or the model cannot be used."""
    if "--help" in sys.argv and find_spec("sglang") is None:
        arguments(__doc__).parse_args()  # help without SGLang's options
    found = _known_version()
    install_cpu_stubs()
    from inference_adapters.sglang.engine import SglangEngine
    from inference_adapters.sglang.options import Options, add_options

    parser = arguments(__doc__)
    add_options(parser)
    args, others = parser.parse_known_args()
    try:
        engine = SglangEngine(Options.of(args, others), found)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot serve: {first_line(error)}")
    run(engine, args)


def _known_version() -> str:
    try:
        found = version("sglang")
    except PackageNotFoundError:
        sys.exit("cannot serve: SGLang is not installed here (`make sglang-env`)")
    if found != KNOWN_VERSIONS:
        sys.exit(
            f"cannot serve: SGLang {found} is installed; this adapter knows {KNOWN_VERSIONS} "
            f"(pip install sglang=={KNOWN_VERSIONS})"
        )
    return found


if __name__ == "__main__":
    main()
