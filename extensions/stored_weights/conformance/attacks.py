"""Versions that no server may serve, because of their manifest or the content of their files, for G14.

Each attack writes one version to a store. All objects have the right names, so only the intended check can
detect the attack. Attacks by deltas are in `delta_attacks`.
"""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors.torch import save

from contracts.conformance.inference.reference import Weights
from extensions.stored_weights.conformance.bench import StoreBench
from extensions.stored_weights.conformance.store import Change, Offer, new_key, parameter_of
from extensions.stored_weights.store.layout import manifest_path
from extensions.stored_weights.store.manifest import StoredParameter, canonical, digest_of
from extensions.stored_weights.store.signing import LATEST_TYPE, MANIFEST_TYPE

HUGE = 20 * 2**20  # bytes of a manifest
OTHER = 50  # added to a version to get a seed for other content
ESCAPED = "escaped"  # name of a file that a vulnerable server writes outside its directory


@dataclass(frozen=True)
class Attack:
    """A version that must not be served.

    relay_only: True if a shared store does not make the check.
    may_pass: True if the server retries it until its timeout.
    ends: expected final state of the version.
    """

    what: str
    make: Callable[[StoreBench, int], Offer]
    relay_only: bool = False
    may_pass: bool = False
    ends: str = "skipped"


def attacks() -> list[Attack]:
    """Returns the attacks without deltas."""
    return [
        Attack("a manifest without a signature", _unsigned),
        Attack("a manifest that another key signed", _of_another_key),
        Attack("a manifest that was changed after it was signed", _changed),
        Attack("a manifest that was signed as something else", _signed_as_latest),
        Attack("a manifest that is not the one that was named", _not_the_named),
        Attack("a manifest of another run", _with(field_of("run", "another-run"))),
        Attack("a manifest of another version", _with(_later)),
        Attack("a manifest of 20 MiB", _with(field_of("padding", "x" * HUGE))),
        Attack("a model file whose name is a path", _escaping),
        Attack("an object whose name is a path", _with(_file("sha256", "../../../../etc/hostname"))),
        Attack("a file of a billion bytes by the manifest", _with(_file("bytes", 10**9))),
        Attack("the shapes of another model", _of_another_shape),
        Attack("a weight that the model does not have", _with_another_name),
        Attack("a weight too few", _without_a_weight),
        Attack("a header that points past the end of its file", _lying(_past_the_end)),
        Attack("a header of which two weights share their bytes", _lying(_overlapping)),
        Attack("a header with other shapes than the manifest", _lying(_transposed)),
        Attack("files with other content than the manifest's digest", _of_other_content, relay_only=True),
        Attack("weights that are not finite", _not_finite, ends="failed"),
    ]


# --- what is signed


def _unsigned(at: StoreBench, version: int) -> Offer:
    offer = at.offer(version)
    return _with_envelope(at, offer, _opened(at, offer) | {"signatures": []})


def _of_another_key(at: StoreBench, version: int) -> Offer:
    return at.offer(version, key=new_key())


def _changed(at: StoreBench, version: int) -> Offer:
    offer = at.offer(version, at.fresh(version + OTHER))
    payload = at.offer(version).manifest
    changed = {"payload": base64.b64encode(canonical(payload)).decode()}
    return _with_envelope(at, offer, json.loads(_envelope(at, offer.manifest)) | changed)


def _signed_as_latest(at: StoreBench, version: int) -> Offer:
    offer = at.offer(version)
    envelope = at.store.key.sign(canonical(offer.manifest), LATEST_TYPE)
    return replace(offer, sha256=at.store.put_manifest(version, envelope))


def _not_the_named(at: StoreBench, version: int) -> Offer:
    offer = at.offer(version, at.fresh(version + OTHER))
    at.offer(version)
    return offer


def _with(change: Change) -> Callable[[StoreBench, int], Offer]:
    return lambda at, version: at.offer(version, change=change)


def field_of(name: str, value: object) -> Change:
    return lambda manifest: manifest | {name: value}


def _later(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest | {"version": manifest["version"] + 1}


def _file(name: str, value: object) -> Change:
    """Returns the change that gives the first full file another value."""

    def change(manifest: dict[str, Any]) -> dict[str, Any]:
        first, *others = manifest["full"]["files"]
        return manifest | {"full": {"files": [first | {name: value}, *others]}}

    return change


def _escaping(at: StoreBench, version: int) -> Offer:
    data = b"{}"
    name = f"../../../../../../../../../../{at.store.directory}/{ESCAPED}"
    file = {"name": name, "sha256": at.store.put_object(data), "bytes": len(data)}
    return at.offer(version, change=field_of("model_files", [file]))


def _envelope(at: StoreBench, manifest: Any) -> bytes:
    return at.store.key.sign(canonical(manifest), MANIFEST_TYPE)


def _opened(at: StoreBench, offer: Offer) -> dict[str, Any]:
    path = at.store.path(manifest_path(at.store.run, offer.version))
    envelope: dict[str, Any] = json.loads(path.read_bytes())
    return envelope


def _with_envelope(at: StoreBench, offer: Offer, envelope: dict[str, Any]) -> Offer:
    return replace(offer, sha256=at.store.put_manifest(offer.version, json.dumps(envelope).encode()))


# --- what the files hold


def like(weights: Weights, other: Weights) -> Weights:
    return {name: tensor.to(other[name].dtype) for name, tensor in weights.items()}


def _largest(weights: Weights) -> str:
    return max(weights, key=lambda name: weights[name].numel())


def _of_another_shape(at: StoreBench, version: int) -> Offer:
    weights = dict(at.fresh(version))
    name = _largest(weights)
    weights[name] = torch.cat([weights[name], weights[name][:1]])
    return at.offer(version, weights)


def _with_another_name(at: StoreBench, version: int) -> Offer:
    return at.offer(version, {**at.fresh(version), "model.no_such_weight": torch.zeros(4)})


def _without_a_weight(at: StoreBench, version: int) -> Offer:
    weights = dict(at.fresh(version))
    del weights[_largest(weights)]
    return at.offer(version, weights)


def _not_finite(at: StoreBench, version: int) -> Offer:
    weights = dict(at.fresh(version))
    name = list(weights)[-1]
    weights[name] = weights[name].clone()
    weights[name].view(-1)[-1] = torch.nan
    return at.offer(version, weights)


def _of_other_content(at: StoreBench, version: int) -> Offer:
    """Returns a version whose manifest has the parameters and digest of other weights."""
    other = [parameter_of(n, tensor) for n, tensor in at.fresh(version + OTHER).items()]
    return at.offer(version, change=lambda manifest: manifest | _listing(other, manifest["tied"]))


def _listing(parameters: list[StoredParameter], tied: dict[str, str]) -> dict[str, Any]:
    listed = [parameter.model_dump(mode="json") for parameter in parameters]
    return {"parameters": listed, "digest": digest_of(parameters, tied)}


Header = dict[str, Any]


def _lying(lie: Callable[[Header], None]) -> Callable[[StoreBench, int], Offer]:
    """Returns a function that makes a version in one file, with a safetensors header changed by `lie`."""

    def make(at: StoreBench, version: int) -> Offer:
        weights = at.fresh(version)
        data = save({name: tensor.contiguous() for name, tensor in weights.items()})
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        lie(header)
        changed = json.dumps(header, separators=(",", ":")).encode()
        changed += b" " * (-len(changed) % 8)
        lying = len(changed).to_bytes(8, "little") + changed + data[8 + size :]
        file = {"sha256": at.store.put_object(lying), "bytes": len(lying), "names": list(weights)}
        return at.offer(version, files=1, change=field_of("full", {"files": [file]}))

    return make


def _entries(header: Header) -> Iterator[dict[str, Any]]:
    """Yields the entries of the tensors in the order of their bytes."""
    entries = [entry for name, entry in header.items() if name != "__metadata__"]
    yield from sorted(entries, key=lambda entry: int(entry["data_offsets"][0]))


def _past_the_end(header: Header) -> None:
    last = [entry for entry in _entries(header) if entry["data_offsets"][1] > entry["data_offsets"][0]][-1]
    start, end = last["data_offsets"]
    last["data_offsets"] = [start + 2**20, end + 2**20]


def _overlapping(header: Header) -> None:
    first, second, *_ = _entries(header)
    size = second["data_offsets"][1] - second["data_offsets"][0]
    begin = first["data_offsets"][0]
    second["data_offsets"] = [begin, begin + size]


def _transposed(header: Header) -> None:
    matrix = next(entry for entry in _entries(header) if len(entry["shape"]) > 1)
    matrix["shape"] = [matrix["shape"][0] * matrix["shape"][1], *matrix["shape"][2:]]
