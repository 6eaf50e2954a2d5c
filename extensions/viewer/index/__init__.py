"""The index of a run's rollouts: a SQLite file of where each is in its stream, and what lists show of it.

It is built by the viewer, never by the run, and may be deleted at any time.
"""

from extensions.viewer.index.filters import Filters, NoSuchCursorError
from extensions.viewer.index.index import Index, Progress
from extensions.viewer.index.queries import Found

__all__ = ["Filters", "Found", "Index", "NoSuchCursorError", "Progress"]
