"""The functions that vLLM calls in every process it starts (entry point `vllm.general_plugins`)."""

import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess

from vllm.distributed.weight_transfer import WeightTransferEngineFactory

from inference_adapters.threads import daemon_thread

BACKEND = "pipelinerl"  # the backend in vLLM's --weight-transfer-config
SERVER_VARIABLE = "PIPELINERL_VLLM_SERVER"  # set in the processes of an adapter's server


def register() -> None:
    WeightTransferEngineFactory.register_engine(
        BACKEND, "inference_adapters.vllm.transport", "GroupTransport"
    )
    parent = multiprocessing.parent_process()
    if parent and os.environ.get(SERVER_VARIABLE):
        daemon_thread(_end_with, parent)


def _end_with(parent: BaseProcess) -> None:
    """Ends this process when the server has ended; otherwise an orphaned engine would keep its memory."""
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
