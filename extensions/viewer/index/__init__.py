"""The index of a run's rollouts: a SQLite file with their offsets and the columns of lists.

Only the viewer builds it, and it may be deleted at any time.
"""

from extensions.viewer.index.filters import Filters, NoSuchCursorError
from extensions.viewer.index.index import Index, Progress
from extensions.viewer.index.queries import Found

__all__ = ["Filters", "Found", "Index", "NoSuchCursorError", "Progress"]
