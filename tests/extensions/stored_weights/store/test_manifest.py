import copy
import hashlib

import pytest
from pydantic import ValidationError

from extensions.stored_weights.store.errors import BadManifestError
from extensions.stored_weights.store.manifest import (
    LatestVersion,
    StoredParameter,
    VersionManifest,
    canonical,
    digest_of,
)
from extensions.stored_weights.store.model_check import check_model

A, B, C, D = ("abcd"[i] * 64 for i in range(4))
PARAMETERS = [
    {"name": "w", "dtype": "bfloat16", "shape": [2, 3], "sha256": A},
    {"name": "v", "dtype": "bfloat16", "shape": [], "sha256": B},
]
TIED = {"head": "w"}
FILES = [{"sha256": A, "bytes": 10, "names": ["w"]}, {"sha256": B, "bytes": 5, "names": ["v"]}]
DELTA = {"base_version": 3, "base_digest": D, "codec": "xor-gap-zstd/1", "files": [dict(FILES[0])]}


def digest(parameters=PARAMETERS, tied=TIED) -> str:
    return digest_of([StoredParameter.model_validate(each) for each in parameters], tied)


MANIFEST = {
    "format": 1, "run": "run-1", "epoch": 2, "version": 4, "tied": TIED, "parameters": PARAMETERS,
    "digest": digest(), "full": {"files": FILES}, "delta": DELTA,
    "model_files": [{"name": "config.json", "sha256": C, "bytes": 7}],
}  # fmt: skip


def read(value) -> VersionManifest:
    return VersionManifest.model_validate_json(canonical(value))


def changed(path: str, value) -> dict:
    """Returns the manifest with another value at a path such as `full.files.0.bytes`."""
    manifest = copy.deepcopy(MANIFEST)
    at = manifest
    *keys, last = (int(key) if key.isdigit() else key for key in path.split("."))
    for key in keys:
        at = at[key]
    at[last] = value
    return manifest


def test_a_manifest_is_read_and_written_as_canonical_json():
    manifest = read(MANIFEST)
    assert manifest.canonical() == canonical(MANIFEST)
    assert manifest.total_bytes == 14
    assert [parameter.nbytes for parameter in manifest.parameters] == [12, 2]


def test_canonical_json_is_the_same_for_the_same_content():
    assert canonical({"b": 1, "a": ["é", {}]}) == b'{"a":["\\u00e9",{}],"b":1}'
    assert canonical({"a": ["é", {}], "b": 1}) == canonical({"b": 1, "a": ["é", {}]})


def test_the_digest_is_the_hash_of_parameters_and_ties():
    assert digest() == hashlib.sha256(canonical({"parameters": PARAMETERS, "tied": TIED})).hexdigest()
    others = [
        digest(PARAMETERS[::-1]),
        digest(tied={}),
        digest([PARAMETERS[0] | {"sha256": C}, PARAMETERS[1]]),
        digest([PARAMETERS[0] | {"shape": [3, 2]}, PARAMETERS[1]]),
        digest([PARAMETERS[0] | {"dtype": "float16"}, PARAMETERS[1]]),
    ]
    assert len({digest(), *others}) == 6


@pytest.mark.parametrize("missing", ["full", "delta"])
def test_a_version_is_full_or_a_delta_or_both(missing):
    assert getattr(read(changed(missing, None)), missing) is None
    with pytest.raises(ValidationError, match="neither full weights nor a delta"):
        read(MANIFEST | {"full": None, "delta": None})


def test_a_delta_may_change_nothing():
    assert read(changed("delta.files", [])).delta.files == []


WIDE = [PARAMETERS[0] | {"dtype": "float32"}, PARAMETERS[1]]
TWICE = [PARAMETERS[0], PARAMETERS[0]]
WRONG = {
    "is not that of the parameters": changed("digest", C),
    "w is listed twice": MANIFEST | {"parameters": TWICE, "digest": digest(TWICE)},
    "do not hold every parameter": changed("full.files", FILES[:1]),
    "hold every parameter exactly once": changed("full.files", [*FILES, FILES[0]]),
    "not hold every parameter": changed("full.files.0.names", ["other"]),
    "hold other, which is unknown": changed("delta.files.0.names", ["other"]),
    "hold w twice": changed("delta.files.0.names", ["w", "w"]),
    "base 4 is not before 4": changed("delta.base_version", 4),
    "a delta of float32 weights": MANIFEST | {"parameters": WIDE, "digest": digest(WIDE)},
    "config.json is listed twice": changed("model_files", MANIFEST["model_files"] * 2),
    "base_version\n": changed("delta.base_version", -1), "format\n": changed("format", 2),
    "codec\n": changed("delta.codec", "other/1"), "run\n": changed("run", "../run"),
    "parameters\n": changed("parameters", []), "full.files\n": changed("full.files", []),
    "full.files.0.bytes\n": changed("full.files.0.bytes", -1),
    "full.files.1.bytes\n": changed("full.files.1.bytes", "5"),
    "full.files.0.sha256\n": changed("full.files.0.sha256", "../" + A),
    "full.files.1.sha256\n": changed("full.files.1.sha256", A.upper()),
    "parameters.0.dtype\n": changed("parameters.0.dtype", "int64"),
    "parameters.0.shape.0\n": changed("parameters.0.shape", [-1]),
    "parameters.0.shape\n": changed("parameters.0.shape", [2**40, 2**40]),
    "parameters.1.shape.0\n": changed("parameters.1.shape", ["2"]),
    "parameters.0.name\n": changed("parameters.0.name", "w\n"),
    "model_files.0.name\n": changed("model_files.0.name", "a/b"), "version\n": changed("version", 1.0),
    "epoch\n": changed("epoch", True), "unknown\n": MANIFEST | {"unknown": 1},
    "delta.unknown\n": changed("delta.unknown", 1),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_manifest_is_refused(message):
    with pytest.raises(ValidationError) as raised:
        read(WRONG[message])
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("shapes", "tied", "says"),
    [
        ({"w": (2, 3)}, TIED, "v is no parameter of the model"),
        ({"w": (2, 3), "v": (), "u": (1,)}, TIED, "u is missing"),
        ({"w": (3, 2), "v": ()}, TIED, "w has the shape"),
        ({"w": (2, 3), "v": ()}, {}, "head is tied otherwise"),
        ({"w": (2, 3), "v": ()}, {"head": "v"}, "head is tied otherwise"),
    ],
)
def test_a_manifest_of_another_model_is_refused(shapes, tied, says):
    check_model(read(MANIFEST), {"w": (2, 3), "v": ()}, TIED)
    with pytest.raises(BadManifestError, match=says):
        check_model(read(MANIFEST), shapes, tied)


def test_the_newest_is_named_exactly():
    value = {"format": 1, "run": "r", "epoch": 1, "version": 2, "manifest_sha256": A, "signed_at": 3}
    assert LatestVersion.model_validate_json(canonical(value)).canonical() == canonical(value)
    for wrong in ({"format": 2}, {"version": -1}, {"manifest_sha256": "a"}, {"signed_at": "3"}, {"more": 1}):
        with pytest.raises(ValidationError):
            LatestVersion.model_validate_json(canonical(value | wrong))
