"""The contracts, executable: does this inference server, or this trainer backend, keep every guarantee?

    python -m contracts.conformance inference --url http://127.0.0.1:8000 --model PATH
    python -m contracts.conformance trainer --adapter trainer_adapters.fsdp.FSDPTrainer --ranks 2

Needs the extra `conformance`. Knows no adapter: a server is met over HTTP and in the weight group, a
trainer through the methods of `TrainerWorker`; what is right, Hugging Face on the CPU says.
"""
