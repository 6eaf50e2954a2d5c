"""Writes rows to parquet shards and row groups of bounded size."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_BYTES = 32 << 20  # memory of a row group, by the caller's estimates
SHARD_BYTES = 256 << 20  # size of a shard on disk


class ShardWriter:
    """Writes `<directory>/00000.parquet`, `00001.parquet`, ...; without rows, creates no directory.

    It buffers the rows of one row group. A shard ends with the row group that exceeds `shard_bytes`.
    """

    def __init__(
        self,
        directory: Path,
        schema: pa.Schema,
        row_group_bytes: int = ROW_GROUP_BYTES,
        shard_bytes: int = SHARD_BYTES,
    ):
        self._directory = directory
        self._schema = schema
        self._row_group_bytes = row_group_bytes
        self._shard_bytes = shard_bytes
        self._rows: list[dict[str, object]] = []
        self._bytes = 0  # size of the buffered rows
        self._shards = 0  # number of shards begun
        self._writer: pq.ParquetWriter | None = None
        self.written = 0  # number of rows written

    def add(self, row: dict[str, object], size: int) -> None:
        """Adds a row of about `size` bytes. Missing columns are null."""
        self._rows.append(row)
        self._bytes += size
        if self._bytes >= self._row_group_bytes:
            self._write_row_group()

    def _write_row_group(self) -> None:
        writer = self._writer or self._begin_shard()
        writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self.written += len(self._rows)
        self._rows = []
        self._bytes = 0
        if self._path.stat().st_size >= self._shard_bytes:
            self._end_shard()

    def _begin_shard(self) -> pq.ParquetWriter:
        self._directory.mkdir(exist_ok=True)
        self._path = self._directory / f"{self._shards:05d}.parquet"
        self._writer = pq.ParquetWriter(self._path, self._schema, compression="zstd")
        self._shards += 1
        return self._writer

    def _end_shard(self) -> None:
        self._writer.close()
        self._writer = None

    def close(self) -> None:
        """Writes the remaining rows. Without this call, the last file is not a valid parquet file."""
        if self._rows:
            self._write_row_group()
        if self._writer:
            self._end_shard()
