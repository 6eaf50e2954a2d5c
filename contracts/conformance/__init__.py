"""Checks whether an inference server, or a trainer backend, keeps every guarantee of its contract.

    python -m contracts.conformance inference --url http://127.0.0.1:8000 --model PATH
    python -m contracts.conformance trainer --adapter trainer_adapters.fsdp.FSDPTrainer --ranks 2

Requires the extra `conformance`. The kit depends on no adapter: it reaches a server over HTTP and in the
weight group, and a trainer through the methods of `TrainerWorker`. A Hugging Face model on the CPU computes
the expected results.
"""
