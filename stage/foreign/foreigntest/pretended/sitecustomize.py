"""Makes PyTorch believe that there is a GPU, in an interpreter whose PyTorch has no CUDA: for tests.

Python runs this file when it starts, and the rest once PyTorch is imported. What is "on the GPU" are tensors of a class of their own, whose memory is the
processor's, as is what computes with them. As on a real one

- an operation of tensors of both is an error, but for copies, and so is one before CUDA was initialised;
- random numbers come from a generator of the GPU's own;
- a copy to page-locked memory that nobody waits for has come once the GPU was waited for;
- the GPUs are those that CUDA_VISIBLE_DEVICES names, and none where it is empty. GPU-gone is not there;
- where PRETENDED_GPU_LOCKS is "no", no memory can be locked.
"""

import importlib.util
import os
import sys

PAGE = 4096


class Importer:
    """Has `pretend` called when PyTorch was imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            pretend(module)

        spec.loader.exec_module = exec_module
        return spec


class Runtime:
    """The part of CUDA's runtime that locks pages. Ranges are whole pages, and none is locked twice."""

    def __init__(self):
        self.locked = {}

    def cudaHostRegister(self, at, size, flags):
        if at % PAGE or size % PAGE or flags or any(begin < at + size and at < begin + length for begin, length in self.locked.items()):
            return 1
        if os.environ.get("PRETENDED_GPU_LOCKS") == "no":
            return 801  # cudaErrorNotSupported
        self.locked[at] = size
        return 0

    def cudaHostUnregister(self, at):
        return 0 if self.locked.pop(at, None) else 713  # cudaErrorHostMemoryNotRegistered

    def holds(self, at, size):
        return any(begin <= at and at + size <= begin + length for begin, length in self.locked.items())


def pretend(torch):
    Tensor, random = torch.Tensor, torch.default_generator
    cuda, runtime, generator = torch.device("cuda", 0), Runtime(), torch.Generator()
    coming, within = [], []  # copies to page-locked memory that nobody has waited for; backwards that run

    class OnGPU(Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return run(function, args, kwargs or {})

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return run(function, args, kwargs or {})

    def wait(*_):
        for to, values in coming:
            to.copy_(values)
        coming.clear()

    def tensors(x):
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, (tuple, list)):
            for part in x:
                yield from tensors(part)

    def on_gpu(x):
        """What an operation gave, on the GPU."""
        if isinstance(x, Tensor) and not isinstance(x, OnGPU):
            return x.as_subclass(OnGPU)
        if isinstance(x, (tuple, list)):
            return type(x)(map(on_gpu, x)) if type(x) in (tuple, list) else type(x)([on_gpu(part) for part in x])
        return x

    def host(x):
        return torch.device("cpu") if isinstance(x, (str, torch.device)) and torch.device(x).type == "cuda" else x

    def wanted(args, kwargs):
        """The kind of device that arguments name; "": none."""
        for x in (*args, kwargs.get("device"), kwargs.get("other")):
            if isinstance(x, Tensor):
                return "cuda" if isinstance(x, OnGPU) else "cpu"
            if isinstance(x, (str, torch.device)):
                return torch.device(x).type
        return ""

    def moved(x, kind, copy=False, dtype=None):
        """A tensor on another device, in memory of its own."""
        wait()
        was = isinstance(x, OnGPU)
        x = x.as_subclass(Tensor)
        if was != (kind == "cuda") or copy:
            x = x.clone()
        if dtype is not None:
            x = x.to(dtype)
        return x.as_subclass(OnGPU) if kind == "cuda" else x

    def to(x, *args, **kwargs):
        dtypes = [a for a in (*args, kwargs.get("dtype")) if isinstance(a, torch.dtype)] + [a.dtype for a in args if isinstance(a, Tensor)]
        kind = wanted(args, kwargs) or ("cuda" if isinstance(x, OnGPU) else "cpu")
        bools = [a for a in args if isinstance(a, bool)]
        return moved(x, kind, kwargs.get("copy", len(bools) > 1 and bools[1]), dtypes[0] if dtypes else None)

    def copy_(x, source, non_blocking=False):
        plain, values = x.as_subclass(Tensor), source.as_subclass(Tensor)
        if isinstance(source, OnGPU) and not isinstance(x, OnGPU) and non_blocking and runtime.holds(x.data_ptr(), x.numel() * x.element_size()):
            coming.append((plain, values.clone()))
            return x
        wait()
        x.copy_(source)
        return x

    def read(function):
        def reads(x, *args, **kwargs):
            if isinstance(x, OnGPU):
                wait()
            return function(x, *args, **kwargs)
        return reads

    own = {
        Tensor.to: to, Tensor.copy_: copy_,
        Tensor.cpu: lambda x, *_, **__: moved(x, "cpu"), Tensor.cuda: lambda x, *_, **__: moved(x, "cuda"),
        Tensor.device.__get__: lambda x: cuda if isinstance(x, OnGPU) else x.device, Tensor.is_cuda.__get__: lambda x: isinstance(x, OnGPU),
        Tensor.get_device: lambda x: 0 if isinstance(x, OnGPU) else -1,
        Tensor.item: read(Tensor.item), Tensor.tolist: read(Tensor.tolist), Tensor.__float__: read(Tensor.__float__), Tensor.__int__: read(Tensor.__int__), Tensor.__bool__: read(Tensor.__bool__),
    }
    mixed = {"__getitem__", "_pack_padded_sequence", "_pad_packed_sequence", "lstm", "gru", "rnn_tanh", "rnn_relu"}  # indices, lengths and sizes of batches may be, or are, the processor's

    def run(function, args, kwargs):
        given = list(tensors((args, list(kwargs.values()))))
        here = any(isinstance(x, OnGPU) for x in given)
        made = not given and wanted(args, kwargs) == "cuda" or bool(given) and kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda"
        moves = function in (Tensor.to, Tensor.cuda) and wanted(args[1:] or ("cuda",), kwargs) == "cuda"
        if not (here or made or moves or within):
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        with torch._C.DisableTorchFunction():
            if function in own:
                return own[function](*args, **kwargs)
            if here and not within and name not in mixed and any(not isinstance(x, OnGPU) and x.dim() > 0 for x in given):
                raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!")
            if made:
                args, kwargs = tuple(map(host, args)), {name: host(x) for name, x in kwargs.items()}
            before = random.get_state()
            random.set_state(generator.get_state())
            try:
                out = function(*args, **kwargs)
            finally:
                generator.set_state(random.get_state())
                random.set_state(before)
            if name in ("_pack_padded_sequence", "_pad_packed_sequence"):
                return on_gpu(out[0]), out[1]
            return on_gpu(out) if here or made else out

    def init():
        if not torch.cuda._initialized:
            torch.cuda._initialized = True
            Mode().__enter__()

    def backwards(function):
        """A backward, within which tensors of the GPU that autograd makes are not known as such."""
        def runs(*args, **kwargs):
            if not any(isinstance(x, OnGPU) for x in tensors((args, list(kwargs.values())))):
                return function(*args, **kwargs)
            within.append(None)
            try:
                return function(*args, **kwargs)
            finally:
                within.pop()
        return runs

    class Device:
        def __init__(self, device):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "GPU-0")
    count = sum(name not in ("", "GPU-gone") for name in shown.split(","))
    torch.version.cuda = "11.8"
    torch.cuda._is_compiled = lambda: True
    torch.cuda.is_available = lambda: count > 0
    torch.cuda.device_count = lambda: count
    torch.cuda.current_device = lambda: 0
    torch.cuda.device = Device
    torch.cuda.init = torch.cuda._lazy_init = init
    torch.cuda.is_initialized = lambda: torch.cuda._initialized
    torch.cuda.synchronize = wait
    torch.cuda.cudart = lambda: runtime
    torch.cuda.default_generators = (generator,)
    torch.cuda.get_rng_state = lambda *_: generator.get_state()
    torch.cuda.set_rng_state = lambda state, *_: generator.set_state(state)
    torch.cuda.manual_seed = torch.cuda.manual_seed_all = generator.manual_seed
    torch.autograd.backward = backwards(torch.autograd.backward)
    torch.autograd.grad = backwards(torch.autograd.grad)


sys.meta_path.insert(0, Importer())
