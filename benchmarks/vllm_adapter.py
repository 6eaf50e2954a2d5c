"""What the vLLM adapter costs: throughput against the bare server, and an update's pause.

    make vllm-env && python -m benchmarks.vllm_adapter [--runs 40] [--updates 20] [--megabytes 400]

Throughput: the same 64 concurrent chat completions (log-probabilities, token ids) to this adapter and to
vLLM's own server, in turn. Pause: how long generation stands still for an update, with requests in flight,
against a raw gloo broadcast of the same bytes plus vLLM's own reload of the same tensors, in turn.
"""

import asyncio
import tempfile
from pathlib import Path

from benchmarks.servers import started
from benchmarks.throughput import throughput
from benchmarks.vllm_pause import make_model, pauses
from benchmarks.vllm_servers import ADAPTER, BARE, ENVIRONMENT
from contracts.conformance.tiny_model import make_tiny_model
from contracts.support.command_line import command_parser


def main() -> None:
    parser = command_parser("benchmarks.vllm_adapter", __doc__)
    parser.add_argument("--runs", type=int, default=40, help="of 64 requests, per server")
    parser.add_argument("--updates", type=int, default=20, help="of each kind")
    parser.add_argument("--megabytes", type=int, default=400, help="of weights, for the pause")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny")
        fields = {"return_token_ids": True, "ignore_eos": True}
        with started(ADAPTER, model, ENVIRONMENT) as adapter, started(BARE, model, ENVIRONMENT) as bare:
            print(asyncio.run(throughput(adapter, bare, model, args.runs, **fields)), flush=True)
        model = make_model(Path(folder) / "large", args.megabytes)
        with started(ADAPTER, model, ENVIRONMENT) as adapter:
            print(asyncio.run(pauses(adapter, model, args.updates)))


if __name__ == "__main__":
    main()
