"""Runs over several nodes. Plugs into the launcher as its executor (`executor=ray`)."""
