"""Hostile requests, and clients that send them to a server."""
