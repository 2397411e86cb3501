"""The worker's requests."""

import os
import sys

from .channel import encode
from .jax_modules import Jax
from .program import Program, Refused, report
from .samples import Samples
from .tensorflow_modules import TensorFlow
from .torch_copies import TorchCopies, TorchGPU
from .torch_passes import Torch

VERSION = 4
FRAMEWORKS = [Torch, Jax, TensorFlow]
DEVICES = {  # that `hello` may name: the classes that compute there
    "": {framework: framework for framework in FRAMEWORKS},
    "cpu": {Torch: TorchCopies, Jax: Jax, TensorFlow: TensorFlow},
    "cuda": {Torch: TorchGPU},
}


class Stub:
    """Answers the requests of a worker."""

    def __init__(self, arena):
        self.arena, self.framework, self.threads, self.device, self.program, self.calls = arena, None, 1, "", None, {}
        self.tf32 = False

    def hello(self, request):
        if request["version"] != VERSION:
            raise Refused(f"version {request['version']} of the protocol; this program has {VERSION}")
        self.threads, self.device = request["threads"], request.get("device", "")
        self.tf32 = request.get("tf32", False)
        if self.device not in DEVICES:
            raise Refused(f"device {self.device!r}; expected one of {', '.join(map(repr, DEVICES))}")
        for framework in FRAMEWORKS:
            os.environ.update(framework.environment(self.threads))
        return {"version": VERSION, "python": sys.version.split()[0]}

    def build(self, request):
        function, self.framework, self.program, self.calls = request["function"], None, Program(request["path"]), {}
        build = self.program.load(function, [framework.package for framework in FRAMEWORKS])
        loss = self.program.function(request["loss"], "gives the loss of logits and targets")
        for framework in FRAMEWORKS:
            framework.begin(request["seed"])
        self.program.takes(build, function, request["args"])
        with self.program.calling("", build):
            built = build(**request["args"])
        samples = self.samples(request)
        for framework in FRAMEWORKS:
            if framework.made(built):
                computes = DEVICES[self.device].get(framework)
                if computes is None:
                    raise Refused(f"modules of {framework.package} compute on cores alone; expected modules of PyTorch with devices.kind: gpu, or devices.kind: cpu", self.program.at())
                made = computes(self.arena, self.threads, self.program, loss, request["seed"])
                made.tf32 = self.tf32
                made.read(samples)
                modules = made.build(built, request.get("cut") or [], request.get("inputs") or [])
                self.framework = made
                return {"framework": made.name, "modules": modules, "copies": made.copies, "locks": made.locks, **({} if samples is None else {"samples": samples.describe()})}
        kind = ("empty " if isinstance(built, (list, tuple)) and not built else "") + type(built).__name__
        expected = "; or ".join(framework.returns for framework in FRAMEWORKS)
        raise Refused(f"{function} returned: {kind}; expected {expected}", self.program.at())

    def samples(self, request):
        """The samples that the user's program makes; None where it makes none."""
        wanted = request.get("samples")
        if not wanted:
            return None
        function = self.program.function(wanted["function"], "returns samples")
        collate = self.program.function(wanted["collate"], "makes inputs and targets of a list of samples")
        args = wanted["args"] or {}
        self.program.takes(function, wanted["function"], args)
        return Samples(self.program, function, args, collate, request["seed"])

    def probe(self, request):
        return {"modules": self.framework.probe(request)}

    def write(self, request):
        for tensor in request["tensors"]:
            self.framework.write(tensor["name"], tensor["at"])

    def bind(self, request):
        self.framework.bind(request)

    def forward(self, request):
        self.calls[request["call"]] = request
        self.framework.forward(request)

    def backward(self, request):
        self.calls[request["call"]] = request
        self.framework.backward(request)

    def again(self, request):
        """Repeats a forward or a backward, with other seeds."""
        call = self.calls.get(request["call"])
        if call is None:
            raise Refused(f"call {request['call']!r} is to be repeated; expected one of a request before")
        if call["request"] == "backward":
            self.framework.backward(call)
            return
        call["seeds"], call["begins"], call["changed"] = request["seeds"], request["begins"], request.get("changed", False)
        self.framework.forward(call)

    def gather(self, request):
        self.framework.gather(request["set"])

    def lock(self, request):
        self.framework.lock(request["at"], request["bytes"])

    def unlock(self, request):
        self.framework.unlock(request["at"])

    def drop(self, request):
        self.framework.drop(request["keep"])

    def batch(self, request):
        for one in request["requests"]:
            if one["request"] not in self.PASSES:
                raise Refused(f"request {one['request']!r} in a batch; expected one of {', '.join(self.PASSES)}")
            getattr(self, one["request"])(one)

    PASSES = ("bind", "forward", "backward", "again", "gather", "lock", "drop")
    REQUESTS = ("hello", "build", "probe", "write", "unlock", "batch") + PASSES

    def answer(self, request):
        """The answer to a request, as text: what it gives, or the error that it ended with."""
        name = request.get("request")
        try:
            if name not in self.REQUESTS:
                raise Refused(f"request {name!r}; expected one of {', '.join(self.REQUESTS)}")
            if self.framework is None and name not in ("hello", "build"):
                raise Refused(f"request {name!r} before a build that succeeded")
            answer = getattr(self, name)(request) or {}
            if self.framework is not None:
                self.framework.finish()
            return encode(answer)
        except BaseException as error:  # whatever the user's program raises is the worker's to report, sys.exit too
            lost = self.framework is not None and self.framework.lost(error)
            return encode({"error": {**report(error, self.program), "lost": lost}})
