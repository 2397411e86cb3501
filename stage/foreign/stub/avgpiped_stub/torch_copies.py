"""PyTorch's modules on a device with memory of its own."""

import contextlib
import sys

from .program import Refused, message
from .torch_passes import Torch

OTHERWISE = "model.interpreter names another interpreter, and with devices.kind: cpu modules compute on cores"


class TorchCopies(Torch):
    """Modules of PyTorch that compute with copies of what lies in the arena: on a GPU, or, which is for tests, on the processor.

    All sets that have a parameter at one place share its copy, and so they do its gradient, which stays on the device until it is gathered. What build made
    stays in the host's memory, but for buffers.
    """

    copies = True

    def __init__(self, *of):
        super().__init__(*of)
        self.no_memory = self.torch.cuda.OutOfMemoryError
        self.places, self.binding = {}, None
        self.computing = 0  # the module that runs

    def build(self, built, cut, inputs):
        out = super().build(built, cut, inputs)
        moved, units = {}, [unit for _, unit in self.units] + ([] if self.whole is None else [self.whole])
        for module in (m for unit in units for m in unit.modules()):
            for own, b in module._buffers.items():
                if b is not None and id(b) not in moved:
                    pair = b, b.to(self.device)
                    moved.update({id(x): pair for x in pair})
                if b is not None:
                    module._buffers[own] = moved[id(b)][1]  # what several modules have stays one
        self.buffers = {full: (module, own, moved[id(b)][1]) for full, (module, own, b) in self.buffers.items()}
        return out

    def probe(self, request):
        with self.memory(f"a dry run on {request['inputs'][0]['shape'][0]} samples"):
            originals = [p for _, _, p in self.parameters.values()]
            try:
                for p in originals:
                    p.data = p.data.to(self.device)
                return super().probe(request)
            finally:
                for p in originals:
                    p.data = p.data.cpu()

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
        torch, found = self.torch, f"{self.name} of {sys.executable}"
        if torch.version.cuda is None:
            raise Refused(f"{found} is built without CUDA, so it computes on no GPU; expected a build with CUDA: {OTHERWISE}")
        try:
            torch.cuda.init()
        except Exception as error:
            raise Refused(f"{found}, which is built with CUDA {torch.version.cuda}, finds no GPU: {message(error)}; expected one, so see to its driver: {OTHERWISE}") from None
        self.device = torch.device("cuda", 0)
        self.generators.append(torch.cuda.default_generators[0])

    def finish(self):
        self.torch.cuda.synchronize(self.device)

