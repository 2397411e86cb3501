"""A stand-in for JAX, on NumPy, for tests: it is not JAX.

Arrays cannot be changed. Within jit what is computed has no values, so Python cannot decide by them, and a function is traced once for each shape.
"""

import functools
import traceback

import numpy as _numpy
import standin_reverse

__version__ = "0.0.standin"


class errors:
    class TracerBoolConversionError(TypeError):
        pass

    class TracerArrayConversionError(TypeError):
        pass

    class JaxRuntimeError(RuntimeError):
        pass


class Array:
    def __init__(self, value, made=None, traced=False):
        self._value = _numpy.asarray(value)
        self.made = made  # what it was computed from, where vjp is to know
        self._traced = traced  # within jit

    __array_priority__ = 100
    shape = property(lambda self: self._value.shape)
    dtype = property(lambda self: self._value.dtype)
    ndim = property(lambda self: self._value.ndim)
    size = property(lambda self: self._value.size)
    nbytes = property(lambda self: self._value.nbytes)

    def _known(self):
        if self._traced:
            raise errors.TracerArrayConversionError(f"The numpy.ndarray conversion method __array__() was called on traced array with shape {self._value.dtype}{list(self.shape)}")
        return self._value

    def __array__(self, dtype=None, copy=None):
        value = self._known().view()
        value.flags.writeable = False
        return value if dtype is None else value.astype(dtype)

    def __setitem__(self, at, value):
        raise TypeError(f"'{type(self)}' object does not support item assignment. JAX arrays are immutable.")

    def __bool__(self):
        if self._traced:
            raise errors.TracerBoolConversionError(f"Attempted boolean conversion of traced array with shape {self._value.dtype}{list(self.shape)}.")
        return bool(self._value)

    def __float__(self):
        return float(self._known())

    def __int__(self):
        return int(self._known())

    def item(self):
        return self._known().item()

    def __len__(self):
        return len(self._value)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __repr__(self):
        return f"Traced<{self.dtype}{list(self.shape)}>" if self._traced else f"Array({self._value}, dtype={self.dtype})"

    __hash__ = None
    T = property(lambda self: apply(standin_reverse.transpose, self))

    def __getitem__(self, at):
        at = tuple(a._value if isinstance(a, Array) else a for a in at) if isinstance(at, tuple) else at._value if isinstance(at, Array) else at
        return apply(standin_reverse.index, self, at=at)

    def astype(self, dtype):
        return apply(standin_reverse.cast, self, dtype=dtype)

    def reshape(self, *shape):
        return apply(standin_reverse.reshape, self, shape=shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape)

    def sum(self, axis=None, keepdims=False):
        return apply(standin_reverse.sum, self, axis=axis, keepdims=keepdims)

    def mean(self, axis=None, keepdims=False):
        return apply(standin_reverse.mean, self, axis=axis, keepdims=keepdims)

    def max(self, axis=None, keepdims=False):
        return apply(standin_reverse.max, self, axis=axis, keepdims=keepdims)


def apply(function, *values, **options):
    """What a function of standin_reverse gives of arrays."""
    arrays = standin_reverse.weak([v._value if isinstance(v, Array) else v for v in values])
    y, back = function(*arrays, **options)
    parents = tuple(v if isinstance(v, Array) and v.made is not None else None for v in values)
    y = _numpy.asarray(y)
    if y.dtype == "float64":
        y = y.astype("float32")
    elif y.dtype == "int64":
        y = y.astype("int32")
    made = (parents, lambda g: tuple(None if p is None or d is None else _numpy.asarray(d, p.dtype) for p, d in zip(parents, back(g)))) if any(p is not None for p in parents) and y.dtype.kind == "f" else None
    return Array(y, made, any(isinstance(v, Array) and v._traced for v in values))


def _binary(name, function):
    setattr(Array, f"__{name}__", lambda self, other: apply(function, self, other))
    setattr(Array, f"__r{name}__", lambda self, other: apply(function, other, self))


for _name, _function in (("add", standin_reverse.add), ("sub", standin_reverse.subtract), ("mul", standin_reverse.multiply), ("truediv", standin_reverse.divide), ("matmul", standin_reverse.matmul), ("pow", standin_reverse.power)):
    _binary(_name, _function)
Array.__neg__ = lambda self: apply(standin_reverse.multiply, self, -1)


def _compare(name, function):
    def compare(self, other):
        traced = self._traced or isinstance(other, Array) and other._traced
        return Array(function(self._value, other._value if isinstance(other, Array) else other), None, traced)

    setattr(Array, f"__{name}__", compare)


for _name, _function in (("lt", _numpy.less), ("le", _numpy.less_equal), ("gt", _numpy.greater), ("ge", _numpy.greater_equal), ("eq", _numpy.equal), ("ne", _numpy.not_equal)):
    _compare(_name, _function)

from . import lax, nn, random, tree_util  # noqa: E402
from . import numpy  # noqa: E402

COMPILED = []  # of each trace of a function, its name and the shapes of its arguments


class debug:
    called = []

    @staticmethod
    def callback(callback, *args):
        """Calls a function with values, when what was compiled runs: its error comes from there, with its place in the text."""
        debug.called.append((callback, args))

    @staticmethod
    def call(callback, args):
        try:
            callback(*(x._value for x in args))
        except Exception as error:
            debug.called.clear()
            frames = reversed(traceback.extract_tb(error.__traceback__))
            at = "\n".join(f"  {f.filename}({f.lineno}): {f.name}" for f in frames)
            raise errors.JaxRuntimeError(f"INTERNAL: Generated function failed: CpuCallback error: {type(error).__name__}: {error}\n\nAt:\n{at}\n") from None


def pure_callback(callback, result_shape_dtypes, *args):
    return Array(_numpy.asarray(callback(*(x._value for x in args)), result_shape_dtypes.dtype).reshape(result_shape_dtypes.shape), None, True)


def _traced(x):
    return x if x._traced else Array(x._value, None if x.made is None else ((x,), lambda g: (g,)), True)


def jit(fun):
    shapes = set()

    @functools.wraps(fun)
    def jitted(*args):
        leaves, shape = tree_util.tree_flatten(args)
        of = tuple((_numpy.shape(x), str(getattr(x, "dtype", type(x)))) for x in leaves) + (str(shape),)
        if of not in shapes:
            shapes.add(of)
            COMPILED.append((getattr(fun, "__name__", str(fun)), of))
        outer = any(isinstance(x, Array) and x._traced for x in leaves)
        inside = [_traced(numpy.asarray(x)) for x in leaves]
        y, shape = tree_util.tree_flatten(fun(*tree_util.tree_unflatten(shape, inside)))
        while debug.called and not outer:
            debug.call(*debug.called.pop(0))
        for leaf in y:
            if not isinstance(leaf, (Array, _numpy.ndarray, _numpy.generic, int, float, bool)):
                raise TypeError(f"function {getattr(fun, '__name__', fun)} traced for jit returned a value of type {type(leaf)}, which is not a valid JAX type")
        y = map(numpy.asarray, y)
        return tree_util.tree_unflatten(shape, [Array(v._value, v.made, outer) for v in y])

    return jitted


ROOT = ((), lambda g: ())  # of what gradients are asked for


def vjp(fun, *primals, has_aux=False):
    leaves, shape = tree_util.tree_flatten(primals)
    for x in leaves:
        if _numpy.asarray(x._value if isinstance(x, Array) else x).dtype.kind != "f":
            raise TypeError(f"vjp requires real- or complex-valued inputs (input dtype that is a sub-dtype of np.inexact), but got {x.dtype}")
    inside = [Array(x._value if isinstance(x, Array) else x, ROOT) for x in leaves]
    y = fun(*tree_util.tree_unflatten(shape, inside))
    y, aux = y if has_aux else (y, None)
    outputs, out_shape = tree_util.tree_flatten(y)
    stop = lambda tree: tree_util.tree_map(lambda v: Array(v._value) if isinstance(v, Array) else v, tree)
    kept = [x for x in _reached(outputs) if x.made is not ROOT]

    def pull(kept, cotangents):
        given, given_shape = tree_util.tree_flatten(cotangents)
        if str(given_shape) != str(out_shape):
            raise ValueError(f"unexpected tree structure of argument to vjp function: got {given_shape}, but expected to match {out_shape}")
        for dy, v in zip(given, outputs):
            if _numpy.shape(dy) != v.shape or dy.dtype != v.dtype:
                raise ValueError(f"Shape of cotangent input to vjp function {_numpy.shape(dy)} must be the same as the shape of corresponding primal input {v.shape}.")
        found = standin_reverse.gradients([(v, dy._value) for v, dy in zip(outputs, given)], inside)
        return tree_util.tree_unflatten(shape, [Array(_numpy.zeros_like(x._value) if g is None else g) for x, g in zip(inside, found)])

    pull = tree_util.Partial(pull, kept)
    return (stop(y), pull, stop(aux)) if has_aux else (stop(y), pull)


def _reached(outputs):
    seen, stack = {}, list(outputs)
    while stack:
        node = stack.pop()
        if id(node) not in seen and node.made is not None:
            seen[id(node)] = node
            stack += [p for p in node.made[0] if p is not None]
    return list(seen.values())


def value_and_grad(fun):
    def both(*args):
        y, pull = vjp(lambda first: fun(first, *args[1:]), args[0])
        return y, pull(numpy.ones((), y.dtype))[0]

    return both


def grad(fun):
    return lambda *args: value_and_grad(fun)(*args)[1]
