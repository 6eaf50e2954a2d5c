"""Serves an odd server: `python -m tests.conformance.odd_servers NAME PORT`."""

import sys

from tests.conformance.odd_servers import serve

if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
