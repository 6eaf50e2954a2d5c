"""Serves a Hugging Face model directory by transformers' continuous batching, on a CPU or one GPU.

    python -m inference_adapters.transformers --model PATH --port 8000

It is the engine of the demo, and needs no other package.
"""

import sys

import torch

from inference_adapters.serve import arguments, run
from inference_adapters.transformers.batching import PAGE_TOKENS
from inference_adapters.transformers.engine import TransformersEngine


def main() -> None:
    """Starts the server, or exits with a message if the model cannot be served."""
    parser = arguments(__doc__)
    parser.add_argument("--model", required=True, help="directory of a Hugging Face causal language model")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--max-batch-tokens",
        type=int,
        default=512,
        help="most tokens, and requests, in one forward pass; with recurrent layers, requests alone",
    )
    parser.add_argument(
        "--num-blocks",
        type=int,
        default=1024,
        help=f"key/value cache, in blocks of {PAGE_TOKENS} tokens; 1024 hold 64 requests of 512 tokens",
    )
    args = parser.parse_args()
    try:
        engine = TransformersEngine(
            args.model, args.dtype, args.device, args.max_batch_tokens, args.num_blocks
        )
    except ValueError as error:
        sys.exit(f"cannot serve: {error}")
    run(engine, args)


if __name__ == "__main__":
    main()
