"""Derivatives of functions of NumPy, for the stand-ins of JAX and TensorFlow beside this file: each gives a value, and a function that gives gradients.

The stand-ins are for tests where neither framework can be installed. They have the signatures and the rules of what tests use, and nothing else.
"""

import numpy


def unbroadcast(g, shape):
    g = numpy.asarray(g)
    while g.ndim > len(shape):
        g = g.sum(0)
    for i, n in enumerate(shape):
        if n == 1 and g.shape[i] != 1:
            g = g.sum(i, keepdims=True)
    return g


def add(a, b):
    return a + b, lambda g: (unbroadcast(g, a.shape), unbroadcast(g, b.shape))


def subtract(a, b):
    return a - b, lambda g: (unbroadcast(g, a.shape), unbroadcast(-g, b.shape))


def multiply(a, b):
    return a * b, lambda g: (unbroadcast(g * b, a.shape), unbroadcast(g * a, b.shape))


def divide(a, b):
    return a / b, lambda g: (unbroadcast(g / b, a.shape), unbroadcast(-g * a / (b * b), b.shape))


def power(a, n):
    return a**n, lambda g: (g * n * a ** (n - 1), None)


def maximum(a, b):
    return numpy.maximum(a, b), lambda g: (unbroadcast(g * (a >= b), a.shape), unbroadcast(g * (a < b), b.shape))


def matmul(a, b):
    swap = lambda x: numpy.swapaxes(x, -1, -2)
    if b.ndim < 2 or a.ndim < 2:
        raise NotImplementedError("a product with a vector: the stand-in has none")
    return a @ b, lambda g: (unbroadcast(g @ swap(b), a.shape), unbroadcast(swap(a) @ g, b.shape))


def exp(a):
    y = numpy.exp(a)
    return y, lambda g: (g * y,)


def log(a):
    return numpy.log(a), lambda g: (g / a,)


def tanh(a):
    y = numpy.tanh(a)
    return y, lambda g: (g * (1 - y * y),)


def sqrt(a):
    y = numpy.sqrt(a)
    return y, lambda g: (g / (2 * y),)


def transpose(a, axes=None):
    back = None if axes is None else numpy.argsort(axes)
    return numpy.transpose(a, axes), lambda g: (numpy.transpose(g, back),)


def reshape(a, shape=None):
    return numpy.reshape(a, shape), lambda g: (numpy.reshape(g, a.shape),)


def spread(g, shape, axis, keepdims):
    if axis is not None and not keepdims:
        g = numpy.expand_dims(g, axis)
    return numpy.broadcast_to(g, shape)


def sum(a, axis=None, keepdims=False):
    return numpy.sum(a, axis, keepdims=keepdims), lambda g: (spread(g, a.shape, axis, keepdims),)


def mean(a, axis=None, keepdims=False):
    y = numpy.mean(a, axis, keepdims=keepdims)
    return y, lambda g: (spread(g, a.shape, axis, keepdims) * a.dtype.type(numpy.size(y) / a.size),)


def max(a, axis=None, keepdims=False):
    y = numpy.max(a, axis, keepdims=True)
    return y if keepdims else numpy.max(a, axis), lambda g: (spread(g, a.shape, axis, keepdims) * (a == y) / (a == y).sum(axis, keepdims=True).astype(a.dtype),)


def index(a, at=None):
    def back(g):
        out = numpy.zeros_like(a)
        numpy.add.at(out, at, g)
        return (out,)

    return a[at], back


def where(a, b, condition=None):
    return numpy.where(condition, a, b), lambda g: (unbroadcast(numpy.where(condition, g, 0), a.shape), unbroadcast(numpy.where(condition, 0, g), b.shape))


def concatenate(*parts, axis=0):
    ends = numpy.cumsum([p.shape[axis] for p in parts])[:-1]
    return numpy.concatenate(parts, axis), lambda g: tuple(numpy.split(g, ends, axis))


def cast(a, dtype=None):
    floats = a.dtype.kind == "f" and numpy.dtype(dtype).kind == "f"
    return a.astype(dtype), lambda g: (g.astype(a.dtype) if floats else None,)


def weak(values):
    """Operands as arrays: numbers of Python have the type of the others."""
    kinds = [v.dtype for v in values if isinstance(v, (numpy.ndarray, numpy.generic))]
    floats = [k for k in kinds if k.kind == "f"]
    out = []
    for v in values:
        if isinstance(v, (numpy.ndarray, numpy.generic)):
            out.append(numpy.asarray(v))
        else:
            whole = isinstance(v, int)
            out.append(numpy.asarray(v, floats[0] if floats else kinds[0] if kinds and whole else "int32" if whole else "float32"))
    return out


def gradients(targets, sources):
    """Adds up the gradients of sources: targets are (what was computed, its gradient); what is computed has made, None or (parents, function)."""
    order, seen, stack = [], set(), [(t, False) for t, _ in targets]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen and node.made is not None:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(p, False) for p in node.made[0] if p is not None]
    found = {}
    for node, g in targets:
        found[id(node)] = found[id(node)] + g if id(node) in found else g
    for node in reversed(order):
        if id(node) in found:
            parents, back = node.made
            for parent, g in zip(parents, back(found[id(node)])):
                if parent is not None and g is not None:
                    found[id(parent)] = found[id(parent)] + g if id(parent) in found else g
    return [found.get(id(s)) for s in sources]
