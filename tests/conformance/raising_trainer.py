"""An adapter's module that cannot be imported, as when a backend's dependency is missing."""

raise RuntimeError("no such backend here")
