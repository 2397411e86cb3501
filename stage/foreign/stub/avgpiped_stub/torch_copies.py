"""PyTorch's modules on a device with memory of its own."""

import contextlib
import os
import sys

from .program import Refused, message
from .torch_passes import Torch

OTHERWISE = "model.interpreter names another interpreter, and with devices.kind: cpu modules compute on cores"
HINTS = {  # by what PyTorch's errors have in their text
    "same device": "on a GPU a module computes with what is there: make tensors where the inputs are, as in torch.zeros(n, device=x.device), and register those that stay as buffers; or let modules compute on cores, with devices.kind: cpu",
    "device-side assert": "a kernel was given what it cannot use, such as an index out of range; with devices.kind: cpu the error names the line",
}


class TorchCopies(Torch):
    """Modules of PyTorch that compute with copies of what lies in the arena: on a GPU, or, which is for tests, on the processor.

    All sets that have a parameter at one place share its copy, and so they do its gradient, which stays on the device until it is gathered. What build made
    stays in the host's memory, but for buffers. Build and the dry run are on the processor in any case.
    """

    copies = True

    def __init__(self, *of):
        super().__init__(*of)
        self.no_memory = self.torch.cuda.OutOfMemoryError
        self.places, self.binding = {}, None
        self.started, self.computing = False, 0  # computing: the module that runs

    def start(self):
        """Goes to the device, before the first set is bound: what was built and tried until then was on the processor, where nobody else computes."""
        moved, units = {}, [unit for _, unit in self.units] + ([] if self.whole is None else [self.whole])
        for module in (m for unit in units for m in unit.modules()):
            for own, b in module._buffers.items():
                if b is not None and id(b) not in moved:
                    pair = b, b.to(self.device)
                    moved.update({id(x): pair for x in pair})
                if b is not None:
                    module._buffers[own] = moved[id(b)][1]  # what several modules have stays one
        self.started = True

    # Memory.

    def bring(self, x):
        if isinstance(x, self.torch.Tensor):
            return x.to(self.device, copy=True, non_blocking=True)  # of memory that holds until the answer
        if callable(getattr(x, "to", None)):
            return x.to(self.device)  # as that of a packed sequence
        if isinstance(x, dict):
            return {key: self.bring(value) for key, value in x.items()}
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*map(self.bring, x))
        if isinstance(x, (tuple, list)):
            return type(x)(map(self.bring, x))
        return x

    def bind(self, request):
        self.computing = request["first"]
        self.binding = {}, {}
        with self.told("a copy of the parameters"):
            if not self.started:
                self.start()
            super().bind(request)
        values, gradients = self.binding
        self.sets[request["set"]].update(copied=list(values.values()), gathered=list(gradients.values()))

    def parameter(self, original, at, gradient):
        values, gradients = self.binding
        p = self.torch.nn.Parameter(self.apart(at, original, values), requires_grad=gradient is not None)
        if gradient is not None:
            p.grad = self.apart(gradient, original, gradients)
        return p, p.grad, p._version

    def apart(self, at, original, noted):
        """The tensor on the device that belongs to a place, which is noted with what lies there."""
        key = at, original.shape
        if key not in self.places:
            self.places[key] = self.torch.zeros(original.shape, device=self.device), self.view(at, list(original.shape), "f32")
        noted[key] = self.places[key]
        return noted[key][0]

    def gather(self, name):
        for own, view in self.sets.get(name, {}).get("gathered", ()):
            view.add_(own.cpu())
            own.zero_()

    @contextlib.contextmanager
    def told(self, what):
        """Says of an error of the device what is to be done about it, and names what it has too little memory for."""
        try:
            yield
        except self.no_memory as error:
            self.refuse_module(self.computing, f"{what} does not fit into the memory of the GPU, at module {self.called(self.computing)}: {error}; expected a smaller micro-batch, fewer pipelines, more stages or recompute")
        except RuntimeError as error:
            for part, hint in HINTS.items():
                if part in str(error):
                    error.args = (f"{error}; {hint}",)
            raise

    # Work.

    def forward(self, request):
        with self.told("a forward"):
            if request.get("changed"):
                for own, view in self.sets.get(request["set"], {}).get("copied", ()):
                    own.data.copy_(view, non_blocking=True)  # of which no graph is in flight
            super().forward(request)

    def backward(self, request):
        with self.told("a backward"):
            super().backward(request)

    def train(self, number, train):
        self.computing = number
        super().train(number, train)


class TorchGPU(TorchCopies):
    """Modules of PyTorch that compute on the first GPU that the process sees; none that is shown is for a dry run, which computes on no GPU."""

    locks = True

    def __init__(self, *of):
        super().__init__(*of)
        cuda, found = self.torch.version.cuda, f"{self.name} of {sys.executable}"
        if cuda is None:
            raise Refused(f"{found} is built without CUDA, so it computes on no GPU; expected a build with CUDA: {OTHERWISE}")
        if os.environ.get("CUDA_VISIBLE_DEVICES") != "" and not self.torch.cuda.is_available():
            raise Refused(f"{found}, which is built with CUDA {cuda}, finds no GPU; expected one, so see to the driver and which CUDA it has: {OTHERWISE}")

    def start(self):
        self.torch.cuda.init()
        self.device = self.torch.device("cuda", 0)
        self.generators.append(self.torch.cuda.default_generators[0])
        self.torch.backends.cuda.matmul.allow_tf32 = self.torch.backends.cudnn.allow_tf32 = self.tf32
        super().start()

    def finish(self):
        if self.started:
            with self.program.calling(f"the GPU, at module {self.called(self.computing)} or in front of it", self.source(self.computing)):
                self.torch.cuda.synchronize(self.device)

    def lost(self, error):
        if not self.started or "device-side assert" in message(error):  # that is the program's
            return False
        try:
            self.torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True  # after such an error every call has it
        return False

    # Page-locked memory, which the GPU copies from and to by itself. What was locked in an earlier build still is.

    def lock(self, at, size):
        if at in self.arena.locked:
            return
        if not self.started:
            self.start()
        self.arena.check(at, size)
        address = self.torch.frombuffer(self.arena.memory, dtype=self.torch.uint8, count=1, offset=at).data_ptr()
        code = 0 if self.arena.unlockable else int(self.torch.cuda.cudart().cudaHostRegister(address, size, 0))
        if code:
            self.arena.unlockable = True
            print(f"memory is not page-locked, so copies to and from the GPU take longer: cudaHostRegister of {size} bytes gave error {code}", file=sys.stderr)
            try:
                self.torch.zeros(1, device=self.device).add_(1)  # the next launch is told of that error, and nothing after it
            except RuntimeError:
                pass
        elif not self.arena.unlockable:
            self.arena.locked[at] = address

    def unlock(self, at):
        address = self.arena.locked.pop(at, None)
        code = 0 if address is None else int(self.torch.cuda.cudart().cudaHostUnregister(address))
        if code:
            raise Refused(f"cudaHostUnregister of the page-locked memory at {at} gave error {code}; expected 0")
