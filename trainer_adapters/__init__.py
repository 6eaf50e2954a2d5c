"""Training backends that implement the trainer contract. Each imports only `contracts` and its own engine."""

import contracts  # noqa: F401  installs the finder that explains imports of moved modules
