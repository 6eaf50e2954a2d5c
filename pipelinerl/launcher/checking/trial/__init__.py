"""The trial of user components: calls each of them once before the start, on made-up inputs.

Components that ship are not tried. `start.py` begins the trial in a forked process, `process.py` makes the
components, and the modules `*_calls.py` call them and check their results.
"""
