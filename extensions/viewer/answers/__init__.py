"""The answers of the viewer's API, as JSON values: one module for each page. Must not know HTTP."""
