"""A module of an adapter that cannot be imported, as where a backend lacks what it needs."""

raise RuntimeError("no such backend here")
