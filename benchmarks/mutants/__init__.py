"""Mutants of the adapters, drawn at random: which does the conformance kit kill, and which do unit tests?"""
