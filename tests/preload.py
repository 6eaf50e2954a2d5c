"""Modules that take long to import, imported once by the fork server for the programs of `tests.forked`."""

import fastapi
import hydra
import matplotlib.figure
import uvicorn

import contracts.conformance.preload
import inference_adapters.serve
import pipelinerl.launcher.composing.compose

__all__ = ["contracts", "fastapi", "hydra", "inference_adapters", "matplotlib", "pipelinerl", "uvicorn"]
