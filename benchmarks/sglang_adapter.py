"""What the SGLang adapter costs: throughput against the bare server.

    make sglang-env && python -m benchmarks.sglang_adapter [--runs 30]

The same 64 concurrent chat completions (log-probabilities) to this adapter and to SGLang's own server, in
turn.
"""

import asyncio
import tempfile
from pathlib import Path

from benchmarks.servers import started
from benchmarks.sglang_servers import ADAPTER, BARE, ENVIRONMENT, KEY
from benchmarks.throughput import throughput
from contracts.conformance.tiny_model import make_tiny_model
from contracts.support.command_line import command_parser


def main() -> None:
    parser = command_parser("benchmarks.sglang_adapter", __doc__)
    parser.add_argument("--runs", type=int, default=30, help="of 64 requests, per server")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny")
        with started(ADAPTER, model, ENVIRONMENT) as adapter, started(BARE, model, ENVIRONMENT) as bare:
            print(asyncio.run(throughput(adapter, bare, model, args.runs, token=KEY)))


if __name__ == "__main__":
    main()
