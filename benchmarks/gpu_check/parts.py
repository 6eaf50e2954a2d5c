"""The parts by name, in the order in which they run: each a function `check(dry)` that returns lines.

A function raises SkippedError where its part cannot be tried, and FailedError where something does not hold.
"""

PARTS = {
    "nccl": "benchmarks.gpu_check.nccl:check",
    "trainer-kit-fsdp": "benchmarks.gpu_check.trainer_kits:fsdp",
    "trainer-kit-deepspeed": "benchmarks.gpu_check.trainer_kits:deepspeed",
    "trainer-kit-deepspeed-zero3": "benchmarks.gpu_check.trainer_kits:deepspeed_of_stage_3",
    "trainer-kit-fsdp-2-ranks": "benchmarks.gpu_check.trainer_kits:fsdp_of_two_ranks",
    "trainer-kit-deepspeed-2-ranks": "benchmarks.gpu_check.trainer_kits:deepspeed_of_two_ranks",
    "inference-kit-transformers": "benchmarks.gpu_check.inference_kits:transformers",
    "inference-kit-vllm": "benchmarks.gpu_check.inference_kits:vllm",
    "inference-kit-sglang": "benchmarks.gpu_check.inference_kits:sglang",
    "publication-gloo": "benchmarks.gpu_check.publication:over_gloo",
    "publication-nccl": "benchmarks.gpu_check.publication:over_nccl",
    "head": "benchmarks.gpu_check.head:check",
    "train-0.5b": "benchmarks.gpu_check.training:half_a_billion",
    "train-1.5b": "benchmarks.gpu_check.training:one_and_a_half_billion",
    "generate-0.5b": "benchmarks.gpu_check.generation:check",
}
