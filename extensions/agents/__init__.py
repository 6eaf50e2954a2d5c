"""Agents: programs that speak OpenAI's API to the run, and are trained on the tokens sampled for them.

Plugs into domains (`pipelinerl.domains`) and into judging, which runs the programs. Must not know servers.
"""
