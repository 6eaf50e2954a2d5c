"""A store of weight versions: files named by their SHA-256, and signed manifests that list them.

A trainer writes versions into the store. Servers read them through HTTP relays, or from a directory that they
share with the trainer. This package must not import an adapter, the pipeline or an engine. The extra
`weights` installs its dependencies.
"""
