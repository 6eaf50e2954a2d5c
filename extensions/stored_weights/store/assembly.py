"""Assembles the directories of versions: safetensors files, their index, and model files such as config.json.

A directory gets its name when it is complete and every parameter has been verified. All functions block, and
run in a worker thread.
"""

import os
import shutil
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from extensions.stored_weights.store.delta_writer import DeltaWriter
from extensions.stored_weights.store.errors import BadDigestError
from extensions.stored_weights.store.index import shard_names, write_index
from extensions.stored_weights.store.layout import SHORT_NAME
from extensions.stored_weights.store.local_files import read_regular, remove, sha256_of
from extensions.stored_weights.store.manifest import MAX_MANIFEST_BYTES, VersionManifest
from extensions.stored_weights.store.model_check import MANIFEST_NAME, WEIGHTS_SUFFIX
from extensions.stored_weights.store.object_files import ObjectFiles, stamp
from extensions.stored_weights.store.plan import Plan, delta_of
from extensions.stored_weights.store.tensor_check import TensorCheck, tensor_entries
from extensions.stored_weights.store.tensor_file import check_tensor_file
from extensions.stored_weights.store.worker_thread import Stop

UNFINISHED = "."  # prefix of unfinished directories


@dataclass(frozen=True)
class AssembledVersion:
    """A version in verified local files, which must not be written to."""

    manifest: VersionManifest
    directory: Path | None  # a Hugging Face checkpoint; None for the files of a shared store
    files: tuple[Path, ...]  # safetensors files that together have every parameter once


def version_name(manifest: VersionManifest) -> str:
    """Returns the name of a version's directory."""
    return f"{manifest.version}-{manifest.digest[:SHORT_NAME]}"


class AssembledVersions:
    """The versions in a puller's directory, below `versions/`."""

    def __init__(self, directory: Path, objects: ObjectFiles):
        self._directory = directory / "versions"
        self._objects = objects
        self._check = TensorCheck()
        self._sound: set[str] = set()  # versions whose files this process has all verified
        self._directory.mkdir(parents=True, exist_ok=True)
        self._manifests = self._found()

    def _found(self) -> dict[str, VersionManifest]:
        """Returns the versions of an earlier process by directory. Removes unfinished ones."""
        manifests = {}
        for path in self._directory.iterdir():
            try:
                written = read_regular(path / MANIFEST_NAME, MAX_MANIFEST_BYTES)
                manifest = VersionManifest.model_validate_json(written)
            except (OSError, ValidationError):
                remove(path)
                continue
            if path.name == version_name(manifest) and not path.is_symlink():
                manifests[path.name] = manifest
            else:
                remove(path)
        return manifests

    def by_digest(self) -> Mapping[str, VersionManifest]:
        """Returns the manifests of the assembled versions."""
        return {manifest.digest: manifest for manifest in list(self._manifests.values())}

    def verified(self, manifest: VersionManifest, stop: Stop) -> AssembledVersion | None:
        """Returns the version if it is assembled, after verifying every parameter. Removes a damaged one."""
        name = version_name(manifest)
        found = self._manifests.get(name)
        if found is None or (found.digest, found.model_files) != (manifest.digest, manifest.model_files):
            return None
        if not self._is_sound(name, stop):
            return None
        return AssembledVersion(manifest, self._directory / name, tuple(self._weight_files(name)))

    def is_sound(self, digest: str, stop: Stop) -> bool:
        """Returns True if a version with this digest is assembled and intact. Removes a damaged one."""
        name = self._name_of(digest)
        return name is not None and self._is_sound(name, stop)

    def _is_sound(self, name: str, stop: Stop) -> bool:
        try:
            held = self._check.check(self._weight_files(name), self._manifests[name], stop)
            if name not in self._sound:
                self._check_others(name, held)
        except (BadDigestError, OSError, KeyError):
            self._remove(name)
            return False
        return True

    def _check_others(self, name: str, held: Mapping[str, Sequence[str]]) -> None:
        """Checks the model files of a version of an earlier process, and rewrites its index."""
        directory = self._directory / name
        for file in self._manifests[name].model_files:
            if sha256_of(directory / file.name) != file.sha256:
                raise BadDigestError(f"{file.name} was altered")
        write_index(directory, self._manifests[name], held)
        self._sound.add(name)

    def _name_of(self, digest: str) -> str | None:
        found = [name for name, each in list(self._manifests.items()) if each.digest == digest]
        return found[0] if found else None

    def assemble(self, plan: Plan, stop: Stop) -> AssembledVersion:
        """Assembles a version from verified local files.

        Raises BadDigestError if the result is not the version, or OSError.
        """
        name = version_name(plan.target)
        scratch = self._directory / f"{UNFINISHED}{name}.{uuid.uuid4().hex}"
        try:
            scratch.mkdir()
            self._fill(scratch, plan, stop)
            self._remove(name)
            os.rename(scratch, self._directory / name)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        self._manifests[name] = plan.target
        self._sound.add(name)
        return AssembledVersion(plan.target, self._directory / name, tuple(self._weight_files(name)))

    def _fill(self, scratch: Path, plan: Plan, stop: Stop) -> None:
        self._copy_root(scratch, plan, stop)
        files = sorted(scratch.iterdir())
        self._apply_deltas(files, plan, stop)
        held = self._check.check(files, plan.target, stop)
        for file in plan.target.model_files:
            _link(self._objects.path(file.sha256), scratch / file.name)
        write_index(scratch, plan.target, held)
        (scratch / MANIFEST_NAME).write_bytes(plan.target.canonical())

    def _copy_root(self, scratch: Path, plan: Plan, stop: Stop) -> None:
        """Links the root's weight files into `scratch`, and copies those that deltas will change."""
        changed = plan.changed_names
        for name, source in self._root_files(plan).items():
            stop.check()
            if changed.isdisjoint(entry.name for entry in tensor_entries(source)):
                _link(source, scratch / name)
            else:
                shutil.copyfile(source, scratch / name)

    def _root_files(self, plan: Plan) -> dict[str, Path]:
        if plan.root_is_here:
            name = self._name_of(plan.root.digest) or version_name(plan.root)
            return {path.name: path for path in self._weight_files(name)}
        parameters = {parameter.name: parameter for parameter in plan.root.parameters}
        paths = {}
        for shard, file in zip(shard_names(len(plan.full_files)), plan.full_files, strict=True):
            paths[shard] = self._objects.path(file.sha256)
            check_tensor_file(paths[shard], {each: parameters[each] for each in file.names})
        return paths

    def _apply_deltas(self, files: list[Path], plan: Plan, stop: Stop) -> None:
        if not plan.deltas:
            return
        writer = DeltaWriter(files, stop)
        for manifest in plan.deltas:
            parameters = {parameter.name: parameter for parameter in manifest.parameters}
            for file in delta_of(manifest).files:
                writer.apply(self._objects.path(file.sha256), parameters, file.names)

    def _weight_files(self, name: str) -> list[Path]:
        return sorted((self._directory / name).glob(f"*{WEIGHTS_SUFFIX}"))

    def keep_only(self, names: Collection[str]) -> None:
        """Deletes all versions except those with these directory names."""
        for name in list(self._manifests):
            if name not in names:
                self._remove(name)
        left = [path for name in list(self._manifests) for path in self._weight_files(name)]
        self._check.forget_all_but({stamp(path) for path in left if path.exists()})

    def _remove(self, name: str) -> None:
        self._manifests.pop(name, None)
        self._sound.discard(name)
        shutil.rmtree(self._directory / name, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    """Links a file, or copies it if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
