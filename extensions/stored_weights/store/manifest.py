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

MAX_MANIFEST_BYTES = 16 * 2**20  # maximum size of a manifest's envelope
MAX_LATEST_BYTES = 16 * 2**10  # maximum size of the envelope of `latest.json`
MAX_FILES = 2**16
MAX_MODEL_FILES = 64  # config.json, tokenizer.json, ...
DELTA_CODEC: Literal["xor-gap-zstd/1"] = "xor-gap-zstd/1"
ITEM_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}  # storable dtype -> bytes
DELTA_DTYPES = ("bfloat16", "float16")

Bytes = Annotated[int, Field(ge=0, lt=MAX_INTEGER)]
DtypeName = Literal["float32", "bfloat16", "float16"]


class Stored(BaseModel):
    """Base class of signed models. Unknown fields and values of other types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def canonical(self) -> bytes:
        """Returns the canonical JSON."""
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
    """One file of the store, and the names of its parameters."""

    sha256: Sha256
    bytes: Bytes
    names: list[ParameterName] = Field(max_length=MAX_PARAMETERS)


class FullWeights(Stored):
    """Safetensors files that together have every parameter exactly once."""

    files: list[StoredFile] = Field(min_length=1, max_length=MAX_FILES)


class DeltaWeights(Stored):
    """Compressed delta files that change the version `base_version` into this one."""

    base_version: Count
    base_digest: Sha256
    codec: Literal["xor-gap-zstd/1"] = DELTA_CODEC
    files: list[StoredFile] = Field(max_length=MAX_FILES)


class ModelFile(Stored):
    """A file such as config.json, which makes an assembled directory a complete checkpoint."""

    name: FileName
    sha256: Sha256
    bytes: Bytes


class VersionManifest(Stored):
    """The manifest of a version. It has full files, a delta or both."""

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
    """The content of `latest.json`: the newest version of a run. `signed_at`: unix seconds."""

    format: Literal[1] = 1
    run: RunName
    epoch: Count
    version: Count
    manifest_sha256: Sha256
    signed_at: Annotated[int, Field(ge=0, lt=MAX_INTEGER)]


def canonical(value: Any) -> bytes:
    """Returns canonical JSON: sorted keys, no spaces, ASCII. `value` has only integers and strings."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest_of(parameters: Iterable[StoredParameter], tied: Mapping[str, str]) -> str:
    """Returns the digest of a version: the SHA-256 of its canonical parameters and ties, as hex."""
    listed = [parameter.model_dump(mode="json") for parameter in parameters]
    return hashlib.sha256(canonical({"parameters": listed, "tied": dict(tied)})).hexdigest()


def _repeated(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)
