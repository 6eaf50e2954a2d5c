"""The scripted server with limits that a test reaches in milliseconds."""

from contracts.limits import Limits
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.serve import arguments, run

LIMITS = Limits(
    header_timeout_s=0.4,
    body_timeout_s=0.4,
    max_header_bytes=4096,
    max_body_bytes=50_000,
    max_generation_bytes=20_000,
    max_connections=12,
)

if __name__ == "__main__":
    run(ScriptedEngine(token_delay_s=0.0), arguments(__doc__).parse_args(), limits=LIMITS)
