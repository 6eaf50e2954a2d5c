"""A volunteer: it starts a server of its own, follows the run's weights, and makes the gateway's tasks."""
