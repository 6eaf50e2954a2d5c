"""`python -m tests.conformance.broken_servers KeepsThePrefixCache 8001`"""

import argparse

from tests.conformance.broken_servers import MUTANTS, serve

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("mutant", choices=sorted(MUTANTS))
parser.add_argument("port", type=int)
chosen = parser.parse_args()
serve(chosen.mutant, chosen.port)
