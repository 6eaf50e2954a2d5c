"""Fixtures of the tests of the store."""

import pytest

from tests.extensions.stored_weights.store.builders import new_writer

FILE_BYTES = 4096  # a version has about five files


@pytest.fixture
def writer(tmp_path):
    config = tmp_path / "config.json"
    config.write_text("{}")
    writer = new_writer(tmp_path / "store", file_bytes=FILE_BYTES, model_files=[config])
    yield writer
    writer.close()


@pytest.fixture
def delta_writer(tmp_path):
    writer = new_writer(tmp_path / "store", file_bytes=FILE_BYTES, deltas=True, full_every=100)
    yield writer
    writer.close()
