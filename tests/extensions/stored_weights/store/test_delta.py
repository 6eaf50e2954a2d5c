import json
import tracemalloc

import numpy as np
import pytest
import zstandard

from extensions.stored_weights.store import delta
from extensions.stored_weights.store.delta import apply_delta, encode_delta
from extensions.stored_weights.store.errors import BadDigestError
from extensions.stored_weights.store.manifest import ITEM_BYTES, StoredParameter


def parameter(name: str, shape: tuple[int, ...], dtype: str = "bfloat16") -> StoredParameter:
    return StoredParameter(name=name, dtype=dtype, shape=shape, sha256="0" * 64)


def random_bytes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def changed(old: np.ndarray, width: int, positions) -> np.ndarray:
    """Returns the bytes with other elements at the positions."""
    new = old.copy()
    new.view(f"<u{width}")[positions] ^= 1 + np.arange(len(positions)).astype(f"<u{width}") % 200
    return new


def applied(path, parameters, names, bases) -> dict[str, np.ndarray]:
    copies = {name: base.copy() for name, base in bases.items()}
    apply_delta(path, {p.name: p for p in parameters}, names, copies.__getitem__)
    return copies


def assert_crosses(tmp_path, parameters, olds, news) -> list[str]:
    path = tmp_path / "delta"
    names = encode_delta(zip(parameters, olds, news, strict=True), path)
    assert path.exists() == bool(names)
    bases = {p.name: old for p, old in zip(parameters, olds, strict=True)}
    result = applied(path, parameters, names, bases) if names else bases
    for p, new in zip(parameters, news, strict=True):
        assert np.array_equal(result[p.name], new), p.name
    return names


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_a_delta_gives_the_new_version(tmp_path, dtype, seed):
    draw = np.random.default_rng(seed)
    width = ITEM_BYTES[dtype]
    parameters = [parameter(f"w{i}", (int(draw.integers(0, 4000)), 3), dtype) for i in range(5)]
    olds = [random_bytes(p.nbytes, seed) for p in parameters]
    news = []
    for old in olds:
        share = draw.choice([0, 0.001, 0.1, 0.24, 0.3, 1])
        news.append(changed(old, width, np.flatnonzero(draw.random(len(old) // width) < share)))
    names = assert_crosses(tmp_path, parameters, olds, news)
    differing = [not np.array_equal(old, new) for old, new in zip(olds, news, strict=True)]
    assert names == [p.name for p, differs in zip(parameters, differing, strict=True) if differs]


CASES = {
    "none changed": (1000, []),
    "all changed": (1000, range(1000)),
    "the first": (1000, [0]),
    "the last": (1000, [999]),
    "neighbours": (1000, [499, 500, 501]),
    "far apart": (2**18 + 5, [3, 2**16 + 4, 2**17 + 9, 2**18 + 4]),
    "around a chunk": (2 * delta.CHUNK + 7, [0, delta.CHUNK - 1, delta.CHUNK, 2 * delta.CHUNK + 6]),
    "a quarter": (1000, range(0, 1000, 4)),
    "one more": (1000, [*range(0, 1000, 4), 1]),
    "one of one": (1, [0]),
    "one of four": (4, [2]),
}


@pytest.mark.parametrize("case", CASES)
def test_changes_cross_wherever_they_are(tmp_path, case):
    count, positions = CASES[case]
    old = random_bytes(2 * count)
    names = assert_crosses(tmp_path, [parameter("w", (count,))], [old], [changed(old, 2, list(positions))])
    assert names == (["w"] if positions else [])


def test_parameters_without_elements_or_dimensions_cross(tmp_path):
    parameters = [parameter("empty", (0, 7)), parameter("scalar", ()), parameter("same", ())]
    olds = [random_bytes(0), random_bytes(2), random_bytes(2, 1)]
    names = assert_crosses(tmp_path, parameters, olds, [olds[0], olds[1] ^ 1, olds[2]])
    assert names == ["scalar"]


def test_more_changes_than_are_handled_at_a_time_cross(tmp_path, monkeypatch):
    monkeypatch.setattr(delta, "CHUNK", 10)
    old = random_bytes(2000)
    assert assert_crosses(tmp_path, [parameter("w", (1000,))], [old], [changed(old, 2, range(7, 900, 5))])


def test_few_changes_are_few_bytes(tmp_path):
    old = random_bytes(2 * 2**20)
    positions = np.flatnonzero(np.random.default_rng(1).random(2**20) < 0.01)
    encode_delta([(parameter("w", (2**20,)), old, changed(old, 2, positions))], tmp_path / "delta")
    assert (tmp_path / "delta").stat().st_size < 3.5 * len(positions)


def hand_made(path, entries: dict[str, tuple[list[int], bytes]], **changes):
    """Writes a compressed safetensors file with these uint8 tensors."""
    header = {}
    end = 0
    for name, (shape, data) in entries.items():
        header[name] = {"dtype": "U8", "shape": shape, "data_offsets": [end, end + len(data)]} | changes
        end += len(data)
    text = json.dumps(header).encode()
    whole = len(text).to_bytes(8, "little") + text + b"".join(data for _, data in entries.values())
    path.write_bytes(zstandard.ZstdCompressor().compress(whole))
    return path


GAP = ([4, 2], bytes([1, 3] + [0] * 6))
XOR = ([2, 2], bytes([1, 1, 1, 1]))
FAR = ([4, 2], bytes([1, 3, 0, 0, 0, 0, 255, 255]))
MALFORMED = {
    "nothing": {},
    "no xor": {"w:gap": GAP},
    "no gap": {"w:xor": XOR},
    "xor first": {"w:xor": XOR, "w:gap": GAP},
    "outside": {"w:gap": ([4, 1], bytes([20, 0, 0, 0])), "w:xor": ([2, 1], b"ab")},
    "far outside": {"w:gap": FAR, "w:xor": XOR},
    "nothing changed": {"w:gap": ([4, 0], b""), "w:xor": ([2, 0], b"")},
    "more than a quarter": {"w:gap": ([4, 6], bytes(24)), "w:xor": ([2, 6], bytes(12))},
    "three planes": {"w:gap": ([3, 2], bytes(6)), "w:xor": XOR},
    "planes of another length": {"w:gap": GAP, "w:xor": ([2, 1], b"ab")},
    "planes of another width": {"w:gap": GAP, "w:xor": ([4, 2], bytes(8))},
    "no dimensions": {"w:gap": ([], b"a"), "w:xor": ([], b"a")},
    "short": {"w:full": ([39], bytes(39))},
    "long": {"w:full": ([41], bytes(41))},
    "both": {"w:gap": GAP, "w:xor": XOR, "w:full": ([40], bytes(40))},
    "other name": {"v:gap": GAP, "v:xor": XOR},
    "one name more": {"w:gap": GAP, "w:xor": XOR, "v:full": ([1], b"a")},
    "one empty name more": {"w:gap": GAP, "w:xor": XOR, "v:full": ([0], b"")},
    "plain name": {"w": ([40], bytes(40))},
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_delta_is_refused(tmp_path, fault):
    path = hand_made(tmp_path / "delta", MALFORMED[fault])
    with pytest.raises(BadDigestError):
        applied(path, [parameter("w", (20,))], ["w"], {"w": random_bytes(40)})


def test_a_tensor_of_another_dtype_is_refused(tmp_path):
    path = hand_made(tmp_path / "delta", {"w:full": ([20], bytes(40))}, dtype="F16")
    with pytest.raises(BadDigestError):
        applied(path, [parameter("w", (20,))], ["w"], {"w": random_bytes(40)})


def test_bytes_after_the_tensors_are_refused(tmp_path):
    path = hand_made(tmp_path / "delta", {"w:gap": GAP, "w:xor": XOR})
    content = zstandard.ZstdDecompressor().decompress(path.read_bytes())
    path.write_bytes(zstandard.ZstdCompressor().compress(content + b"a"))
    with pytest.raises(BadDigestError, match="more than"):
        applied(path, [parameter("w", (20,))], ["w"], {"w": random_bytes(40)})


def test_damage_anywhere_is_refused_or_harmless(tmp_path):
    """Neither a changed nor a missing byte ends in another error. What it decodes to is found by its hash."""
    p = parameter("w", (3000,))
    old = random_bytes(6000)
    path = tmp_path / "delta"
    encode_delta([(p, old, changed(old, 2, range(0, 3000, 40)))], path)
    whole = path.read_bytes()
    refused = 0
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        for content in (damaged, whole[:position]):
            path.write_bytes(content)
            try:
                applied(path, [p], ["w"], {"w": old})
            except BadDigestError:
                refused += 1
    assert refused > len(whole)


def test_a_small_file_cannot_make_the_reader_allocate(tmp_path):
    """It holds 256 MiB of zeros, after headers of several kinds."""
    zeros = bytes(2**20)
    for beginning in (bytes(8), (2**30).to_bytes(8, "little"), (2**62).to_bytes(8, "little"), b""):
        compressor = zstandard.ZstdCompressor(level=1)
        with (tmp_path / "delta").open("wb") as file, compressor.stream_writer(file, closefd=False) as stream:
            stream.write(beginning)
            for _ in range(2**8):
                stream.write(zeros)
        tracemalloc.start()
        with pytest.raises(BadDigestError):
            applied(tmp_path / "delta", [parameter("w", (20,))], ["w"], {"w": random_bytes(40)})
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
        tracemalloc.stop()


def test_a_window_that_needs_much_memory_is_refused(tmp_path):
    p = parameter("w", (20,))
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    whole = hand_made(tmp_path / "delta", {"w:gap": GAP, "w:xor": XOR}).read_bytes()
    content = zstandard.ZstdDecompressor().decompress(whole)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    (tmp_path / "delta").write_bytes(writer.compress(content) + writer.flush())
    with pytest.raises(BadDigestError, match="decompressed"):
        applied(tmp_path / "delta", [p], ["w"], {"w": random_bytes(40)})


def test_encoding_needs_memory_for_one_parameter(tmp_path):
    """Thirty parameters of 4 MiB, of which all elements change, need far less than 120 MiB."""
    one = random_bytes(4 * 2**20)

    def pairs():
        for i in range(30):
            yield parameter(f"w{i}", (2**21,)), one, one ^ np.uint8(i + 1)

    tracemalloc.start()
    encode_delta(pairs(), tmp_path / "delta")
    assert tracemalloc.get_traced_memory()[1] < 48 * 2**20
    tracemalloc.stop()
