"""Fixtures that these tests have in common with those of the pipeline."""

from tests.pipeline.conftest import pair, ranks, url, urls, worker

__all__ = ["pair", "ranks", "url", "urls", "worker"]
