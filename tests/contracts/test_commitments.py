"""Commitments have the bytes that toploc's own arithmetic gives, and what is no proof is refused."""

import ctypes
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.commitments import CHUNK, MOST_POINTS, PRIME, check_form, commit, compare

HIDDEN = 64


@pytest.fixture(scope="module")
def toploc(tmp_path_factory):
    """toploc's own source, compiled."""
    source = Path(find_spec("toploc").origin).parent / "C" / "csrc" / "ndd.cpp"
    header = Path(__file__).parent / "toploc_header"
    library = tmp_path_factory.mktemp("toploc") / "ndd.so"
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", f"-I{header}", f'-DTOPLOC_SOURCE="{source}"']
    subprocess.run(["g++", *flags, header / "exported.cpp", "-o", library], check=True)
    return ctypes.CDLL(str(library))


def rows_of(tokens, seed=0, scale=1.0):
    generator = np.random.default_rng(seed)
    return (scale * generator.standard_normal((tokens, HIDDEN))).astype(np.float32)


def ints(values):
    return (ctypes.c_int * len(values))(*values)


def test_a_thousand_chunks_have_the_proofs_of_toploc(toploc):
    rows = rows_of(1000 * CHUNK)
    proofs = np.frombuffer(commit(rows), ">u2").reshape(1000, 1 + MOST_POINTS)
    for proof, chunk in zip(proofs, torch.tensor(rows).bfloat16().reshape(1000, -1), strict=True):
        places = chunk.float().abs().sort(descending=True, stable=True).indices[:MOST_POINTS]
        values = chunk[places].view(torch.uint16).tolist()
        modulus = next(
            m for m in range(PRIME, 2**15, -1) if len({place % m for place in places.tolist()}) == len(places)
        )
        found = ints([0] * MOST_POINTS)
        toploc.interpolate(ints([place % modulus for place in places]), ints(values), MOST_POINTS, found)
        assert [modulus, *found] == proof.tolist()


def test_what_toploc_reads_from_a_proof_are_the_largest_elements(toploc):
    rows = rows_of(CHUNK)
    modulus, *coefficients = np.frombuffer(commit(rows), ">u2").tolist()
    flat = torch.tensor(rows).bfloat16().reshape(-1)
    places = flat.float().abs().topk(MOST_POINTS).indices
    values = ints([0] * MOST_POINTS)
    toploc.evaluate(ints(coefficients), ints((places % modulus).tolist()), MOST_POINTS, values)
    assert list(values) == flat[places].view(torch.uint16).tolist()


def test_a_wide_chunk_has_a_modulus_of_its_own():
    rows = np.zeros((1, 4 * PRIME), np.float32)
    rows[0, :MOST_POINTS] = 1.0
    rows[0, [PRIME, PRIME + 1]] = 2.0  # modulo the prime they are the places 0 and 1
    proofs = commit(rows)
    assert int.from_bytes(proofs[:2], "big") < PRIME
    assert compare(proofs, rows)[0].exponents == 0


@pytest.mark.parametrize("tokens", [1, 3, CHUNK, CHUNK + 1, 3 * CHUNK - 1])
def test_equal_rows_do_not_differ_and_others_do(tokens):
    rows = rows_of(tokens)
    proofs = commit(rows)
    assert all((each.exponents, each.mantissa) == (0, 0) for each in compare(proofs, rows))
    assert len(compare(proofs, rows)) == -(-tokens // CHUNK)
    assert all(each.mantissa < 2 for each in compare(proofs, rows + rows_of(tokens, 1, 1e-3)))
    assert all(each.exponents > 0.5 for each in compare(proofs, rows_of(tokens, 1)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda proofs: proofs[:-2], "bytes of proofs"),
        (lambda proofs: b"\0\0" + proofs[2:], "modulus 0"),
        (lambda proofs: b"\xff\xff" + proofs[2:], "modulus 65535"),
        (lambda proofs: proofs[:-2] + (65500).to_bytes(2, "big"), "proof 1 has the coefficient 65500"),
    ],
)
def test_what_cannot_be_a_proof_is_refused(change, says):
    with pytest.raises(ValueError, match=says):
        check_form(change(commit(rows_of(CHUNK + 8))), CHUNK + 8, HIDDEN)
