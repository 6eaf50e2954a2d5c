"""Devices that cost time and no computation: a server, a trainer, and a domain for them.

They take the place of the scripted pair in a run, to measure the pipeline apart from any model.
"""
