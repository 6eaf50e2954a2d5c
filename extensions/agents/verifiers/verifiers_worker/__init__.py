"""The program that runs episodes, by the Python that has the package `verifiers`.

`__main__.py` finds its modules by their path. They import nothing of this project, which is not installed.
"""
