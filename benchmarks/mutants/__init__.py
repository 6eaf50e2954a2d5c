"""Mutants of the adapters, drawn by machine: which does the conformance kit kill, and which do unit tests?"""
