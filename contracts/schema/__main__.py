"""The command `python -m contracts.schema`: checks that the files are current, or writes them."""

import argparse
import sys

from contracts.schema.documents import DIRECTORY, documents, text_of


def main() -> int:
    """Returns 0 if every file is current, or was written; otherwise 1."""
    parser = argparse.ArgumentParser(prog="python -m contracts.schema", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files, and remove others")
    write = parser.parse_args().write
    wanted = {name: text_of(document) for name, document in documents().items()}
    found = {path.name: path.read_text() for path in DIRECTORY.glob("*.json")}
    if write:
        for name in found.keys() - wanted.keys():
            (DIRECTORY / name).unlink()
        for name, text in wanted.items():
            (DIRECTORY / name).write_text(text)
    elif stale := sorted(
        name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)
    ):
        print(f"not current: {', '.join(stale)}; run python -m contracts.schema --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
