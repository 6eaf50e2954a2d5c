"""Rollouts from strangers' machines: volunteers behind one server, which audits every completion.

Plugs into `inference.module`: the gateway is a `TokenEngine`. It needs `weights=relay`.
"""
