"""Optional parts of a run, each a component that the configuration names.

An extension stands on `contracts`, `pipelinerl` and the adapters, and none of them imports it. Extensions do
not import each other, except that all may use `extensions.stored_weights.store`.
"""
