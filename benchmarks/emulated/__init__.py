"""Emulated devices that take time without computing: a server, a trainer, and a domain for them.

They replace the scripted pair in a run, to measure the pipeline separately from any model.
"""
