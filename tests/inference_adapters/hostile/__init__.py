"""Hostile requests: what they are, and clients that send them to a server."""
