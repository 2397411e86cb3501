"""PyTorch's modules on a device with memory of its own."""

import contextlib
import sys

from .program import Refused, message
from .torch_passes import Torch

OTHERWISE = "model.interpreter names another interpreter, and with devices.kind: cpu modules compute on cores"


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
            return x.to(self.device, copy=True)
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
        if not self.started:
            self.start()
        self.binding = {}, {}
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
    def memory(self, what):
        """Names what the device has too little memory for."""
        try:
            yield
        except self.no_memory as error:
            self.refuse_module(self.computing, f"{what} does not fit into the memory of the GPU, at module {self.called(self.computing)}: {message(error)}; expected a smaller micro-batch, more stages or recompute")

    # Work.

    def forward(self, request):
        with self.memory("a forward"):
            if request.get("changed"):
                for own, view in self.sets.get(request["set"], {}).get("copied", ()):
                    own.data.copy_(view)  # of which no graph is in flight
            super().forward(request)

    def backward(self, request):
        with self.memory("a backward"):
            super().backward(request)

    def train(self, number, train):
        self.computing = number
        super().train(number, train)


class TorchGPU(TorchCopies):
    """Modules of PyTorch that compute on the first GPU that the process sees."""

    def __init__(self, *of):
        super().__init__(*of)
        cuda, found = self.torch.version.cuda, f"{self.name} of {sys.executable}"
        if cuda is None:
            raise Refused(f"{found} is built without CUDA, so it computes on no GPU; expected a build with CUDA: {OTHERWISE}")
        if not self.torch.cuda.is_available():
            raise Refused(f"{found}, which is built with CUDA {cuda}, finds no GPU; expected one, so see to the driver and which CUDA it has: {OTHERWISE}")

    def start(self):
        self.torch.cuda.init()
        self.device = self.torch.device("cuda", 0)
        self.generators.append(self.torch.cuda.default_generators[0])
        super().start()

    def finish(self):
        if self.started:
            self.torch.cuda.synchronize(self.device)
