"""Imports the modules of a rank once in the fork server, so that a rank starts in milliseconds.

It uses no device.
"""

import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.optim
import torch.profiler
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, Qwen2ForCausalLM
from transformers.utils import logging

__all__ = ["AutoModelForCausalLM", "AutoTokenizer", "LlamaForCausalLM", "Qwen2ForCausalLM", "torch"]

# A progress bar creates a named semaphore, which would remain if a rank is killed.
logging.disable_progress_bar()
