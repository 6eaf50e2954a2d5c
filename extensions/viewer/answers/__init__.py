"""The answers of the viewer's API: one module per page, from an open run to JSON, without HTTP."""
