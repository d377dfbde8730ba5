"""Pretended GPUs: they show the control flow of training on GPUs, on a machine without one.

Every tensor is on the CPU. Above autograd, a mode notes on which pretended device each storage lies, and does what a
real device would do to the control flow:

* `tensor.device` is the pretended one; an operation on tensors of two devices raises torch's own error.
* Allocations count against the process's share of the device's memory, beyond which they raise torch.OutOfMemoryError.
  Memory that tensors have freed stays with the process until its cache is emptied.

The folder has `devices.json`, and `log.jsonl`: who did what.
"""

import contextlib
import json
import os
from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tuner.training.devices.accelerator import Accelerator

SEVERAL = "Expected all tensors to be on the same device, but found at least two devices, {} and {}!"
MOVES = {"to", "cpu", "cuda", "copy_", "type_as", "new_tensor"}  # take tensors of two devices
ASKS = {"__get__", "__set__", "untyped_storage", "is_floating_point", "is_complex", "numel", "size", "dim", "__len__"}
ASKS |= {"requires_grad_", "__repr__", "data_ptr", "element_size", "__hash__", "__reduce_ex__", "__deepcopy__"}
ASKS |= {"_has_compatible_shallow_copy_type"}
INDEXES = {"__getitem__", "__setitem__"}  # take indices on the CPU
MIB = 1 << 20


def make(folder, num_devices, total_bytes):
    """Writes a machine's pretended devices to a folder; returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "devices.json").write_text(json.dumps({"devices": num_devices, "total_bytes": total_bytes}))
    return folder


def log_of(folder):
    """What all processes did, in order."""
    path = Path(folder) / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Devices(Accelerator):
    """The pretended devices that this process sees, in the order of CUDA_VISIBLE_DEVICES."""

    def __init__(self, folder):
        self.folder = Path(folder)
        made = json.loads((self.folder / "devices.json").read_text())
        self.total = made["total_bytes"]
        self.every = [str(index) for index in range(made["devices"])]
        self.share, self.current, self.used = 1.0, 0, False
        self.storages = {}  # id of a storage -> (weak reference to it, its device's index, its bytes)
        self.allocated, self.reserved, self.peak = [0] * len(self.every), [0] * len(self.every), 0
        self.generators_of = [torch.Generator() for _ in self.every]

    @property
    def physical(self):
        """The devices that are visible now: a trial's process is forked from one that has not used any."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return self.every if visible is None else [index for index in visible.split(",") if index]

    def check(self):
        if not self.physical:
            raise RuntimeError("the trial has a GPU from Ray, but no device is visible")

    def devices(self, first, num_devices):
        devices = super().devices(first, num_devices)
        if devices[0].type == "cuda":
            for device in devices:
                self.index_of(device)
            self.enter()
        return devices

    def use(self, device):
        if torch.device(device).type == "cuda":
            self.current = self.index_of(torch.device(device))
            self.note("use", self.current)

    def backend(self, device):
        assert super().backend(device) == ("nccl" if device.startswith("cuda") else "gloo")
        return "gloo"

    def generators(self, devices):
        return [self.generators_of[self.index_of(device)] for device in devices if device.type == "cuda"]

    def replicated(self, model, devices):
        return Replicated(model, devices)

    def limit(self, share):
        self.share = min(1.0, share)
        self.note("limit", self.current, share=self.share)

    def in_use(self):
        return self.used

    def empty_cache(self):
        if self.used:
            self.sweep()
            self.reserved = list(self.allocated)
            self.note("empty_cache", self.current)

    def uuid(self):
        return f"pretended-{self.physical[self.current]}"

    def memory_bytes(self):
        self.sweep()
        now, peak, self.peak = self.allocated[self.current], self.peak, 0
        return now, max(now, peak)

    def enter(self):
        """Puts the mode over all operations of this thread, for good."""
        if not any(isinstance(mode, Mode) for mode in torch.overrides._get_current_function_mode_stack()):
            Mode(self).__enter__()

    def leave(self):
        """Takes the mode away again, if this thread has it."""
        for mode in torch.overrides._get_current_function_mode_stack():
            if isinstance(mode, Mode):
                mode.__exit__(None, None, None)

    def index_of(self, device):
        index = self.current if device.index is None else device.index
        if index >= len(self.physical):
            raise torch.AcceleratorError("CUDA error: invalid device ordinal\n")
        return index

    def device_of(self, tensor):
        found = self.storages.get(tensor.untyped_storage()._cdata)
        return None if found is None else found[1]

    def put(self, tensor, index):
        """Counts a tensor's storage to a device; raises torch's error if there is no room."""
        storage = tensor.untyped_storage()
        known = self.storages.get(storage._cdata)
        if known is not None and not known[0].expired():
            return
        if not self.reserved[index]:
            self.note("first", index)
        num_bytes, self.used = storage.nbytes(), True
        if self.allocated[index] + num_bytes > self.reserved[index]:
            self.sweep()
            if (needed := self.allocated[index] + num_bytes) > self.share * self.total:
                self.note("out of memory", index)
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. GPU {index} has a total capacity of {self.total / MIB:.2f} MiB. "
                    f"{self.share * self.total / MIB:.2f} MiB allowed; {self.allocated[index] / MIB:.2f} MiB allocated."
                )
            self.reserved[index] = max(self.reserved[index], needed)
        self.storages[storage._cdata] = (StorageWeakRef(storage), index, num_bytes)
        self.allocated[index] += num_bytes
        if index == self.current:
            self.peak = max(self.peak, self.allocated[index])

    def sweep(self):
        """Takes back what freed storages held."""
        for key, (storage, index, num_bytes) in list(self.storages.items()):
            if storage.expired():
                self.allocated[index] -= num_bytes
                del self.storages[key]

    def note(self, what, index, **more):
        line = {"pid": os.getpid(), "what": what, "device": self.physical[index], "visible": self.physical, **more}
        with open(self.folder / "log.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")


class Mode(TorchFunctionMode):
    """Does for each operation what the devices of its tensors would do."""

    def __init__(self, devices):
        super().__init__()
        self.here = devices

    def __torch_function__(self, func, types, args=(), kwargs=None):
        here, kwargs = self.here, dict(kwargs or {})
        name = getattr(func, "__name__", "")
        owner = getattr(getattr(func, "__self__", None), "__name__", "")  # of a property, its name
        if name == "__get__" and owner in ("device", "is_cuda", "is_cpu"):
            index = here.device_of(args[0])
            if owner == "device":
                return torch.device("cpu") if index is None else torch.device("cuda", index)
            return (index is not None) == (owner == "is_cuda")
        if name.startswith("_foreach_"):
            return self.each(func, name, args, kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on = next((index for tensor in tensors if (index := here.device_of(tensor)) is not None), None)
        if name in ("numpy", "__array__") and on is not None:
            raise TypeError(f"can't convert cuda:{on} device type tensor to numpy. Use Tensor.cpu() first.")
        if name in ("to", "cpu", "cuda"):
            return self.move(name, args, kwargs, on)
        wanted = kwargs.get("device")
        if wanted is not None and torch.device(wanted).type == "cuda":
            on, kwargs["device"] = here.index_of(torch.device(wanted)), "cpu"
        elif wanted is not None:
            on = None
        elif name not in MOVES | ASKS:
            self.check(name, tensors)
        result = func(*args, **kwargs)
        if on is not None:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    here.put(leaf, on)
        return result

    def each(self, func, name, args, kwargs):
        """An operation on lists of tensors: the first ones of all lists lie on one device, and so on."""
        here, lists = self.here, [arg for arg in args if isinstance(arg, (list, tuple)) and arg]
        lists = [each for each in lists if isinstance(each[0], torch.Tensor)]
        for tensors in zip(*lists, strict=True):
            self.check(name, tensors)
        results = func(*args, **kwargs)
        for first, result in zip(lists[0], results or (), strict=False):
            if (on := here.device_of(first)) is not None:
                here.put(result, on)
        return results

    def check(self, name, tensors):
        """Raises torch's error for tensors of two devices; a number on the CPU and an index may be beside a GPU's."""
        pairs = [(tensor, self.here.device_of(tensor)) for tensor in tensors]
        on = {index for tensor, index in pairs if index is not None or (tensor.dim() and name not in INDEXES)}
        if len(on) > 1:
            shown = sorted("cpu" if index is None else f"cuda:{index}" for index in on)
            raise RuntimeError(SEVERAL.format(*shown[:2]))

    def move(self, name, args, kwargs, on):
        """`tensor.to(device)` and the like: a copy if the device is another one."""
        here, tensor, device, more = self.here, args[0], None, {}
        if name in ("cpu", "cuda"):
            device = torch.device(name)
        else:
            device, dtype, _, memory_format = torch._C._nn._parse_to(*args[1:], **kwargs)
            more = {"dtype": dtype, "memory_format": memory_format or torch.preserve_format}
            if len(args) > 1 and isinstance(args[1], torch.Tensor):
                device = args[1].device
        wanted = on if device is None else here.index_of(device) if device.type == "cuda" else None
        moved = torch.Tensor.to(tensor, copy=wanted != on, **more)
        if wanted is not None and moved is not tensor:
            here.put(moved, wanted)
        return moved


class Replicated(torch.nn.Module):
    """What nn.DataParallel does, one device after the other."""

    def __init__(self, module, devices):
        super().__init__()
        self.module, self.replicas = module, devices

    def forward(self, inputs):
        outputs = []
        for part, device in zip(torch.chunk(inputs, len(self.replicas)), self.replicas, strict=False):
            named = {name: value.to(device) for name, value in self.module.named_parameters()}
            named |= {name: value.to(device) for name, value in self.module.named_buffers()}
            outputs.append(torch.func.functional_call(self.module, named, (part.to(device),)).to(self.replicas[0]))
        return torch.cat(outputs)


@contextlib.contextmanager
def installed(folder):
    """Puts the pretended devices of a folder in the seam, in this process."""
    from tuner.training.devices import accelerator

    before, accelerator.here = accelerator.here, Devices(folder)
    try:
        yield accelerator.here
    finally:
        accelerator.here.leave()
        accelerator.here = before
