"""Checks that a manifest describes the server's model, and that its files are not too large."""

from collections.abc import Mapping, Sequence

from extensions.stored_weights.store.errors import BadManifestError
from extensions.stored_weights.store.index import INDEX_NAME
from extensions.stored_weights.store.manifest import MAX_MODEL_FILES, ModelFile, StoredFile, VersionManifest

MANIFEST_NAME = "weights_manifest.json"  # in the directory of an assembled version
WEIGHTS_SUFFIX = ".safetensors"
FILE_BYTES = 1024  # maximum bytes of a file besides its tensors and their header entries
ENTRY_BYTES = 512  # maximum bytes of a tensor's header entries, besides its name
MAX_MODEL_FILE_BYTES = 256 * 2**20  # maximum total of the model files


def check_model(
    manifest: VersionManifest, shapes: Mapping[str, tuple[int, ...]], tied: Mapping[str, str]
) -> None:
    """Raises BadManifestError, which names the parameter, unless the manifest matches the model."""
    listed = {parameter.name: parameter.shape for parameter in manifest.parameters}
    if odd := listed.keys() ^ shapes.keys():
        name = min(odd)
        raise BadManifestError(f"{name} is {'missing' if name in shapes else 'no parameter of the model'}")
    for name, shape in shapes.items():
        if listed[name] != tuple(shape):
            raise BadManifestError(f"{name} has the shape {list(listed[name])}, not {list(shape)}")
    if manifest.tied != dict(tied):
        name = min(set(manifest.tied.items()) ^ set(tied.items()))[0]
        raise BadManifestError(f"{name} is tied otherwise than in the model")


def check_sizes(manifest: VersionManifest) -> None:
    """Raises BadManifestError if a file has an impossible size, or a model file a reserved name."""
    nbytes = {parameter.name: parameter.nbytes for parameter in manifest.parameters}
    if manifest.full is not None:
        for file in manifest.full.files:
            _check_size(file, nbytes, at_least=sum(nbytes[name] for name in file.names))
    if manifest.delta is not None:
        for file in manifest.delta.files:
            _check_size(file, nbytes, at_least=0)
    check_model_files(manifest.model_files)


def check_model_files(files: Sequence[ModelFile]) -> None:
    """Raises BadManifestError if these model files are too many, too large, or have a reserved name."""
    if len(files) > MAX_MODEL_FILES:
        raise BadManifestError(f"{len(files)} files beside the weights, of at most {MAX_MODEL_FILES}")
    if sum(file.bytes for file in files) > MAX_MODEL_FILE_BYTES:
        raise BadManifestError(f"the files beside the weights exceed {MAX_MODEL_FILE_BYTES} bytes")
    for file in files:
        if file.name.endswith(WEIGHTS_SUFFIX) or file.name in (INDEX_NAME, MANIFEST_NAME):
            raise BadManifestError(f"{file.name} cannot be the name of a file beside the weights")


def _check_size(file: StoredFile, nbytes: Mapping[str, int], at_least: int) -> None:
    most = FILE_BYTES + sum(nbytes[name] + 2 * len(name) + ENTRY_BYTES for name in file.names)
    if not at_least <= file.bytes <= most:
        raise BadManifestError(f"a file of {file.bytes} bytes, where {at_least} to {most} are possible")
