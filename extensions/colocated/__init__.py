"""Servers and trainer take turns (`schedule=colocated`).

Plugs into launcher, actor and trainer as a schedule.
"""
