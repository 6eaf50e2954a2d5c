"""The actor's side: chooses the servers whose weights may be used."""
