"""A stub with a framework of its own, in plain Python, written after docs/worker-protocol.md and sharing nothing with the stub for Python."""

import importlib.util
import json
import math
import mmap
import random
import socket
import struct
import sys
import time

sys.modules["plain"] = sys.modules["__main__"]


class Tensor:
    def __init__(self, shape, values, trained=True):
        self.shape, self.values, self.trained = shape, values, trained


def multiply(rows, w):
    """W x of each row, W given by its rows."""
    return [[sum(a * b for a, b in zip(x, of)) for of in w] for x in rows]


class Module:
    statistics = {}


class Linear(Module):
    """y = scale * (W x) + bias, of which scale and bias may be absent."""

    def __init__(self, parameters):
        self.parameters = parameters

    def forward(self, x, values, random, train):
        n = len(x[0])
        w = [values["weight"][i : i + n] for i in range(0, len(values["weight"]), n)]
        scale, bias = values.get("scale", [1.0])[0], values.get("bias", [0.0] * len(w))
        y = [[scale * a + b for a, b in zip(row, bias)] for row in multiply(x, w)]

        def backward(dy):
            d = [[scale * g for g in row] for row in dy]
            gradients = {"weight": [sum(g[r] * row[c] for g, row in zip(d, x)) for r in range(len(w)) for c in range(n)]}
            if "bias" in values:
                gradients["bias"] = [sum(column) for column in zip(*dy)]
            return multiply(d, list(zip(*w))), gradients

        return y, backward


class Stub:
    def __init__(self, memory):
        self.memory, self.sets, self.kept, self.calls = memory, {}, {}, {}

    def read(self, at, count):
        return list(struct.unpack_from(f"<{count}f", self.memory, at))

    def write(self, at, values):
        struct.pack_into(f"<{len(values)}f", self.memory, at, *values)

    def add(self, at, values):
        self.write(at, [a + b for a, b in zip(self.read(at, len(values)), values)])

    def hello(self, q):
        return {"version": 4, "python": "plain " + sys.version.split()[0]}

    def build(self, q):
        found = importlib.util.spec_from_file_location("program", q["path"])
        program = importlib.util.module_from_spec(found)
        found.loader.exec_module(program)
        self.path = q["path"]
        self.function = getattr(program, q["loss"]) if q["loss"] else None
        self.modules = getattr(program, q["function"])(random.Random(q["seed"]), **q["args"])
        self.tensors, out = {}, []
        for number, m in enumerate(self.modules):
            described = {"name": str(number), "type": type(m).__name__, "parameters": [], "buffers": []}
            for own, p in m.parameters.items():
                tied = next((name for name, other in self.tensors.items() if other is p), "")
                self.tensors[f"{number}.{own}"] = p
                described["parameters"].append({"name": f"{number}.{own}", "shape": p.shape, "tied_to": tied, "trained": p.trained})
            for own, b in m.statistics.items():
                self.tensors[f"{number}.{own}"] = b
                described["buffers"].append({"name": f"{number}.{own}", "shape": b.shape})
            out.append(described)
        return {"framework": "plain 1", "modules": out}

    def probe(self, q):
        shape = q["inputs"][0]["shape"]
        x, out = [[0.5] * shape[1] for _ in range(shape[0])], []
        for m in self.modules:
            values = {own: list(t.values) for own, t in {**m.parameters, **m.statistics}.items()}
            begin = time.perf_counter()
            y, backward = m.forward(x, values, random.Random(q["seed"]), True)
            middle = time.perf_counter()
            backward(y)
            out.append({
                "inputs": [{"shape": [len(x), len(x[0])], "type": "f32"}], "outputs": [{"shape": [len(y), len(y[0])], "type": "f32"}], "differentiable": [True],
                "saved_bytes": 4 * len(x) * len(x[0]), "forward_seconds": middle - begin, "backward_seconds": time.perf_counter() - middle,
            })
            x = y
        return {"modules": out}

    def write_(self, q):
        for t in q["tensors"]:
            self.write(t["at"], self.tensors[t["name"]].values)

    def bind(self, q):
        places, bound = iter(q["parameters"]), []
        for m in self.modules[q["first"] : q["last"]]:
            bound.append([(own, len(t.values), own in m.statistics) + tuple(next(places)) for own, t in [*m.parameters.items(), *m.statistics.items()]])
        self.sets[q["set"]] = bound

    def again(self, q):
        call = self.calls[q["call"]]
        getattr(self, call["request"])({**call, "seeds": q.get("seeds"), "begins": q["begins"]})

    def forward(self, q):
        self.calls[q["call"]] = q
        (given,), wanted = q["inputs"], q.get("outputs")
        count, width = math.prod(given["shape"]), given["shape"][-1]
        flat = self.read(given["at"], count)
        x = [flat[i : i + width] for i in range(0, count, width)]
        backwards, totals = [], []
        for seed, m, bound in zip(q["seeds"], self.modules[q["first"] :], self.sets[q["set"]]):
            values = {}
            for own, n, statistic, at, second in bound:
                values[own] = self.read(second if statistic and second is not None and not q["begins"] else at, n)
            x, backward = m.forward(x, values, random.Random(seed), q["train"])
            backwards.append((backward, bound))
            totals += [(second, values[own]) for own, _, statistic, _, second in bound if statistic]
        shape, gradient = [len(x), len(x[0])], None
        if wanted and shape != wanted[0]["shape"]:
            raise TypeError(f"output of shape {shape}; expected {wanted[0]['shape']}")
        if q["count"]:
            for at, value in totals:
                self.write(at, value)
        if wanted:
            self.write(wanted[0]["at"], [v for row in x for v in row])
        else:
            gradient = self.loss(x, q["loss"])
        if "keep" in q:
            self.kept[q["keep"]] = (backwards, shape, given["shape"], gradient)

    def backward(self, q):
        self.calls[q["call"]] = q
        backwards, (rows, width), shape, gradient = self.kept.pop(q["keep"])
        (given,), (wanted,) = q["doutputs"], q["dinputs"]
        if gradient is not None:
            d = [[q["weight"] * g for g in row] for row in gradient]
        elif given is not None:
            flat = self.read(given["at"], rows * width)
            d = [flat[i : i + width] for i in range(0, len(flat), width)]
        else:
            if wanted is not None:
                self.write(wanted["at"], [0.0] * math.prod(shape))
            return
        for backward, bound in reversed(backwards):
            d, gradients = backward(d)
            for own, _, statistic, _, gradient in bound:
                if not statistic and gradient is not None:
                    self.add(gradient, gradients[own])
        if wanted is not None:
            self.write(wanted["at"], [v for row in d for v in row])

    def loss(self, x, q):
        (target,) = q["targets"]
        targets = struct.unpack_from(f"<{len(x)}i", self.memory, target["at"])
        loss, gradient = self.function(x, targets)
        self.write(q["at"], [loss])
        return gradient

    def drop(self, q):
        self.kept.pop(q["keep"], None)

    def batch(self, q):
        for one in q["requests"]:
            getattr(self, one["request"])(one)

    def answer(self, q):
        try:
            return getattr(self, {"write": "write_"}.get(q["request"], q["request"]))(q) or {}
        except Exception as error:
            at = error.__traceback__
            while at.tb_next is not None and at.tb_frame.f_code.co_filename != getattr(self, "path", ""):
                at = at.tb_next
            return {"error": {"type": type(error).__name__, "message": str(error), "file": at.tb_frame.f_code.co_filename, "line": at.tb_lineno, "traceback": []}}


def main():
    stream = socket.socket(fileno=int(sys.argv[1]))
    stub = Stub(mmap.mmap(int(sys.argv[2]), int(sys.argv[3])))
    messages = stream.makefile("rb")
    while True:
        head = messages.read(4)
        if len(head) < 4:
            return
        text = json.dumps(stub.answer(json.loads(messages.read(*struct.unpack("<I", head))))).encode()
        stream.sendall(struct.pack("<I", len(text)) + text)


main()
