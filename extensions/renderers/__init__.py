"""Model families of the library `renderers`: their prompts, calls and thoughts (`model.renderer`).

Plugs into what converts between messages and tokens (`pipelinerl.conversations`). Must not know servers.
"""
