"""The actor's side: which servers have weights that may be used."""
