"""The publisher of the publication parts is that of a run on GPUs, or on CPUs."""

import pytest

from benchmarks.gpu_check.publication import settings
from contracts.inference import Parameter
from contracts.weights import WeightManifest
from pipelinerl.launcher.compose import compose_config

MANIFEST = WeightManifest((Parameter(name="head", dtype="float32", shape=(64, 32)),), {})


@pytest.mark.parametrize(("backend", "device"), [("nccl", "cuda"), ("gloo", "cpu")])
def test_the_backend_is_that_of_the_runs_device(backend, device):
    config = compose_config(settings(backend, MANIFEST))
    assert config.device == device
    assert config.weights.bucket_bytes == 64 * 32 * 4 // 8
