"""Checks that the OpenAPI file of the inference contract is current, or writes it.

    python -m contracts.schema --write

Without --write it changes nothing, and exits with 1 if the file is not current.
"""

import sys

from contracts.schema.openapi import FILE, openapi_text
from contracts.support.command_line import command_parser


def main() -> int:
    parser = command_parser("contracts.schema", __doc__)
    parser.add_argument("--write", action="store_true", help="write the file")
    if parser.parse_args().write:
        FILE.write_text(openapi_text())
    elif not FILE.exists() or FILE.read_text() != openapi_text():
        print(f"not current: {FILE.name}; run python -m contracts.schema --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
