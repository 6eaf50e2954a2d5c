"""The manifest of a stored weight version: its parameters, its files, and the digest that identifies it."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from contracts.limits import (
    MAX_INTEGER,
    MAX_PARAMETERS,
    Count,
    FileName,
    ParameterName,
    RunName,
    Sha256,
    Shape,
)

MAX_MANIFEST_BYTES = 16 * 2**20  # of the envelope of a version's manifest
MAX_LATEST_BYTES = 16 * 2**10  # of the envelope of `latest.json`
MAX_FILES = 2**16
MAX_MODEL_FILES = 64  # config.json, tokenizer.json, ...
DELTA_CODEC: Literal["xor-gap-zstd/1"] = "xor-gap-zstd/1"
# Bytes of an element, by torch's name of the dtype. Other dtypes are not stored.
ITEM_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
DELTA_DTYPES = ("bfloat16", "float16")

Bytes = Annotated[int, Field(ge=0, lt=MAX_INTEGER)]
DtypeName = Literal["float32", "bfloat16", "float16"]


class Stored(BaseModel):
    """Base class of what is signed. Unknown fields are refused, and so are values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def canonical(self) -> bytes:
        """Returns the canonical JSON: keys sorted, no spaces, ASCII."""
        return canonical(self.model_dump(mode="json"))


class StoredParameter(Stored):
    """One parameter: Hugging Face name, dtype, shape, and the SHA-256 of its little-endian bytes."""

    name: ParameterName
    dtype: DtypeName
    shape: Annotated[Shape, Field(strict=False)]  # JSON has lists
    sha256: Sha256

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class StoredFile(Stored):
    """One file of the store, named by its SHA-256, and the parameters in it."""

    sha256: Sha256
    bytes: Bytes
    names: list[ParameterName] = Field(max_length=MAX_PARAMETERS)


class FullWeights(Stored):
    """The safetensors files that together hold every parameter, each in exactly one file."""

    files: list[StoredFile] = Field(min_length=1, max_length=MAX_FILES)


class DeltaWeights(Stored):
    """The compressed files that turn the version `base_version` into this one."""

    base_version: Count
    base_digest: Sha256
    codec: Literal["xor-gap-zstd/1"] = DELTA_CODEC
    files: list[StoredFile] = Field(max_length=MAX_FILES)


class ModelFile(Stored):
    """A file beside the weights, such as config.json, so that the assembled directory loads by itself."""

    name: FileName
    sha256: Sha256
    bytes: Bytes


class VersionManifest(Stored):
    """What a version is. `full`, `delta` or both say how to obtain it."""

    format: Literal[1] = 1
    run: RunName
    epoch: Count
    version: Count
    tied: dict[ParameterName, ParameterName] = Field(default_factory=dict, max_length=MAX_PARAMETERS)
    parameters: list[StoredParameter] = Field(min_length=1, max_length=MAX_PARAMETERS)
    digest: Sha256
    full: FullWeights | None = None
    delta: DeltaWeights | None = None
    model_files: list[ModelFile] = Field(default_factory=list, max_length=MAX_MODEL_FILES)

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [parameter.name for parameter in self.parameters]
        if twice := _repeated(names):
            raise ValueError(f"parameter {twice} is listed twice")
        if self.digest != digest_of(self.parameters, self.tied):
            raise ValueError("the digest is not that of the parameters")
        if self.full is None and self.delta is None:
            raise ValueError("neither full weights nor a delta")
        if self.full is not None:
            held = [name for file in self.full.files for name in file.names]
            if sorted(held) != sorted(names):
                raise ValueError("the full files do not hold every parameter exactly once")
        if self.delta is not None:
            held = [name for file in self.delta.files for name in file.names]
            if unknown := set(held) - set(names):
                raise ValueError(f"the delta's files hold {min(unknown)}, which is unknown")
            if twice := _repeated(held):
                raise ValueError(f"the delta's files hold {twice} twice")
            if not self.delta.base_version < self.version:
                raise ValueError(f"the delta's base {self.delta.base_version} is not before {self.version}")
            if wide := [p.dtype for p in self.parameters if p.dtype not in DELTA_DTYPES]:
                raise ValueError(f"a delta of {wide[0]} weights")
        if twice := _repeated(file.name for file in self.model_files):
            raise ValueError(f"the model file {twice} is listed twice")
        return self

    @property
    def total_bytes(self) -> int:
        """The number of bytes of all parameters."""
        return sum(parameter.nbytes for parameter in self.parameters)


class LatestVersion(Stored):
    """The newest version of a run, as `latest.json` states it. Times are seconds since 1970."""

    format: Literal[1] = 1
    run: RunName
    epoch: Count
    version: Count
    manifest_sha256: Sha256
    signed_at: Annotated[int, Field(ge=0, lt=MAX_INTEGER)]


def canonical(value: Any) -> bytes:
    """Returns the canonical JSON of a value that holds integers and strings only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest_of(parameters: Iterable[StoredParameter], tied: Mapping[str, str]) -> str:
    """Returns the digest of a version: the SHA-256 of its canonical parameters and ties, as hex."""
    listed = [parameter.model_dump(mode="json") for parameter in parameters]
    return hashlib.sha256(canonical({"parameters": listed, "tied": dict(tied)})).hexdigest()


def _repeated(names: Iterable[str]) -> str | None:
    """Returns a name that occurs more than once, or None."""
    return next((name for name, count in Counter(names).items() if count > 1), None)
