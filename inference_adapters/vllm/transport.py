"""vLLM's weight transfer engine, which receives or reads weights in the workers. `plugin` registers it.

vLLM calls the lifecycle (init, start, update, finish) in every worker, each of which is one rank of the
group. Workers generate meanwhile, so joining and receiving run in a thread, and only copying in a call.
Methods record failures for `state` instead of raising them: if one of several workers raises, vLLM
mismatches the workers' results.
"""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from vllm.distributed.weight_transfer import WeightTransferEngine
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import SKIP_LOAD_TENSORS, get_layerwise_info
from vllm.model_executor.models import supports_multimodal

from contracts.inference import Parameter
from contracts.weights import WeightGroup, nccl_version, parameter_bytes, receive_weights
from inference_adapters.finite_weights import why_not_finite
from inference_adapters.stored_tensors import stored_tensors
from inference_adapters.threads import daemon_thread
from inference_adapters.vllm import committed_states, prompt_scores
from inference_adapters.vllm.transfer import GroupAddress, TiedWeights, Transfer, with_copies


class WeightWorker:
    """A mixin of vLLM's worker (`--worker-extension-cls`) by which `WeightCalls` calls the transport."""

    def weight_transport(self, call: str, *args: object) -> object:
        return getattr(self.weight_transfer_engine, call)(*args)


class GroupTransport(WeightTransferEngine[GroupAddress, TiedWeights]):
    init_info_cls = GroupAddress
    update_info_cls = TiedWeights

    def __init__(self, config, vllm_config, device, model):
        super().__init__(config, vllm_config, device, model)
        prompt_scores.install()  # here, because every worker has a transport
        self._updated = model  # what an update is of
        self._group: WeightGroup | None = None
        self._joining = None
        self._transfer: Transfer | None = None

    def take_states(self, name: str, tokens: int) -> bytes:
        return committed_states.take(name, tokens)

    def forget_states(self, names: list[str]) -> None:
        committed_states.forget(names)

    # --- the group --------------------------------------------------------------------------------

    def nccl_version(self) -> str | None:
        return nccl_version() if self.device.type == "cuda" else None

    def init_transfer_engine(self, address: GroupAddress) -> None:
        """Starts to join a group in a thread. Poll `joined`. The current group stays until `enter`."""
        self._joining = daemon_thread(self._join, address)

    def _join(self, address: GroupAddress) -> WeightGroup:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # the device is per thread
        return WeightGroup.join(
            address.master_address,
            address.master_port,
            address.group_name,
            address.rank_offset + self.parallel_config.rank,
            address.world_size,
            address.backend,
            address.timeout_s,
            address.probe,
        )

    def joined(self) -> str | bool:
        """Returns True if the group has been joined, False while joining, or the error as text."""
        if not self._joining.done():
            return False
        if error := self._joining.exception():
            return repr(error)
        return True

    def enter(self) -> None:
        """Replaces the old group by the newly joined one."""
        self.shutdown()
        self._group = self._joining.result()

    def shutdown(self) -> None:
        if self._transfer:
            self._transfer.drop()
        if self._group is not None:
            daemon_thread(self._group.close)  # closing waits for a pending broadcast
            self._group = None

    # --- a stored version -------------------------------------------------------------------------

    def load(self, version: int, files: list[str], shapes: dict[str, list[int]]) -> None:
        """Starts to check a stored version in a thread. Poll `state` until it is complete.

        The files are mapped, so the weights need no second copy in memory.
        """
        self._transfer = Transfer(0, buffers_all=True)
        self._updated = _part_of(self.model, shapes)
        with self._transfer.recording_failure():
            tensors = stored_tensors(version, map(Path, files), shapes)
            self._transfer.total_bytes = sum(tensor.nbytes for tensor in tensors.values())
            daemon_thread(self._check, self._transfer, tensors)

    def _check(self, transfer: Transfer, tensors: dict[str, torch.Tensor]) -> None:
        with transfer.recording_failure():
            for name, tensor in tensors.items():
                transfer.not_finite = transfer.not_finite or why_not_finite({name: tensor})
            transfer.put(tensors)
            transfer.received_bytes = transfer.total_bytes

    def drop(self) -> None:
        """Releases the memory of an update that was applied or will not be."""
        self._transfer.drop()

    # --- one update -------------------------------------------------------------------------------

    def receive(self, parameters: list[dict], bucket_bytes: int, timeout_s: float, staged: bool) -> None:
        """Starts to receive an update in a thread. Poll `state`.

        On a CPU, buckets are always kept until all have passed their checks, even if `staged` is False.
        """
        manifest = [Parameter(**parameter) for parameter in parameters]
        total = sum(parameter_bytes(p) for p in manifest)
        self._updated = _part_of(self.model, [parameter.name for parameter in manifest])
        self._transfer = Transfer(total, buffers_all=staged or self.device.type == "cpu")
        buckets = receive_weights(self._group, manifest, bucket_bytes, timeout_s)
        daemon_thread(self._receive, self._transfer, buckets, self._group)

    def _receive(
        self,
        transfer: Transfer,
        buckets: Iterator[dict[str, torch.Tensor]],
        group: WeightGroup,
    ) -> None:
        started = time.monotonic()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        try:
            for bucket in buckets:
                transfer.not_finite = transfer.not_finite or why_not_finite(bucket)
                if transfer.not_finite and not transfer.buffers_all:
                    raise ValueError(transfer.not_finite)
                transfer.received_bytes += sum(tensor.nbytes for tensor in bucket.values())
                transfer.seconds = time.monotonic() - started
                if not transfer.not_finite:  # otherwise the rest is received only for the other members' sake
                    # A GPU has no room for a second copy of the model.
                    if transfer.buffers_all:
                        bucket = {name: tensor.cpu() for name, tensor in bucket.items()}
                    transfer.put(bucket)
                if transfer.dropped:
                    return
        except Exception as error:
            group.close()  # a pending broadcast would block the worker's GPU
            transfer.error = repr(error)

    def state(self) -> dict:
        transfer = self._transfer
        complete = transfer.received_bytes == transfer.total_bytes
        return {
            "bytes": transfer.received_bytes,
            "complete": complete,
            "buffers_all": transfer.buffers_all,
            "seconds": transfer.seconds,
            "not_finite": transfer.not_finite if complete else None,
            "error": transfer.error,
        }

    def start_weight_update(self) -> None:
        with self._transfer.recording_failure():
            initialize_layerwise_reload(self._updated)

    def receive_weights(self, update: TiedWeights) -> None:
        """Copies each bucket into the model on arrival. Returns early if the transfer fails."""
        with self._transfer.recording_failure():
            self._copy(self._transfer, update.tied)

    def _copy(self, transfer: Transfer, tied: dict[str, str]) -> None:
        missing = {name for name, _ in self._updated.named_parameters()}
        copied = 0
        while copied < transfer.total_bytes and (bucket := transfer.take()):
            copied += sum(tensor.nbytes for tensor in bucket.values())
            loaded = self._updated.load_weights(with_copies(bucket, tied))
            missing -= missing if loaded is None else loaded  # not every model reports what it loaded
            if self.device.type == "cuda":
                torch.cuda.current_stream().synchronize()  # before the bucket's memory is reused
        if missing and not transfer.error and self.model_config.quantization is None:
            raise RuntimeError(f"vLLM found nothing for {sorted(missing)} in what was sent")
        if kept := sorted(_kept_parameters(self._updated) - tied.keys()):
            raise RuntimeError(
                f"vLLM calls no loader for {kept[0]} ({len(kept)} parameters of "
                f"{type(self._updated).__name__}) and would keep the old values: use another server"
            )

    def finish_weight_update(self) -> None:
        """Finalizes every layer, even after a failed transfer."""
        with self._transfer.recording_failure():
            finalize_layerwise_reload(self._updated, self.model_config)


def _part_of(model: torch.nn.Module, names: Iterable[str]) -> torch.nn.Module:
    """Returns what parameters of these names are of: the model, or the text model in it."""
    whole = any("language_model." in name for name in names)
    return model if whole or not supports_multimodal(model) else model.get_language_model()


def _kept_parameters(model: torch.nn.Module) -> set[str]:
    """Returns the parameters that no loader was called for. vLLM would keep or make up their values.

    Some classes, such as vLLM 0.32's GPT-OSS, copy past the loaders that collect an update.
    """
    kept = set()
    for path, layer in model.named_modules():
        info = get_layerwise_info(layer)
        if info.can_load():
            loaded = {name for name, _ in info.loaded_weights} | SKIP_LOAD_TENSORS
            own = layer.named_parameters(recurse=False)
            kept |= {f"{path}.{name}" for name, tensor in own if name not in loaded and tensor.is_meta}
    return kept
