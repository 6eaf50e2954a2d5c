"""Serves rollouts that strangers' machines make (the gateway), and joins such a run as a volunteer.

    python -m extensions.volunteers join LINK                  work for a run, with an invite link
    python -m extensions.volunteers invite --label ana         an operator makes a link
    python -m extensions.volunteers list                       ... sees who takes part
    python -m extensions.volunteers evict ADDRESS --why TEXT   ... puts a volunteer out
    python -m extensions.volunteers restore ADDRESS            ... lets one in again
    python -m extensions.volunteers ledger verify              ... checks the ledger

Without one of these words it is the gateway, which `launch.py inference=volunteers weights=relay` starts.
docs/volunteers.md describes both sides.
"""

import sys

COMMANDS = ("invite", "list", "evict", "restore", "ledger")


def main() -> None:
    """Runs the command that the first argument names. Exits with a one-line message if it fails."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word == "join":
        from extensions.volunteers.join.command import join

        join(sys.argv[2:])
    elif word in COMMANDS:
        from extensions.volunteers.commands import operate

        operate(sys.argv[1:])
    else:
        _serve()


def _serve() -> None:
    from extensions.volunteers.gateway.options import GatewayOptions, add_options
    from extensions.volunteers.gateway.serving import gateway_of
    from inference_adapters.serve import arguments, run

    parser = arguments(__doc__ or "")
    add_options(parser)
    args = parser.parse_args()
    try:
        options = GatewayOptions.of(args)
        engine = gateway_of(options)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot serve: {error}")
    run(engine, args)


if __name__ == "__main__":
    main()
