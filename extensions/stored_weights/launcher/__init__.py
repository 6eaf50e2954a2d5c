"""The launcher's side: the directory of the store."""
