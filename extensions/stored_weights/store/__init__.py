"""A store of weight versions: files named by their SHA-256, and signed manifests that list them.

A trainer writes versions into it. Servers read them through HTTP relays, or from a directory that they share
with the trainer. Nothing here knows an adapter, the pipeline or an engine. The extra `weights` installs what
this package needs.
"""
