"""Read-only views of a run directory: web pages, metric trackers, parquet exports and traces.

Plugs into the launcher as observers of a run; users also call the views as commands. Must not change a run.
No process of the pipeline imports this package.
"""
