"""A stand-in for TensorFlow 2, on NumPy, for tests: it is not TensorFlow.

Tensors cannot be changed, variables are assigned to, and a tape gives gradients once unless it is persistent.
"""

import numpy as _numpy
import standin_reverse as _reverse

__version__ = "0.0.standin"


class DType:
    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return self.name == getattr(other, "name", other)

    def __hash__(self):
        return hash(self.name)

    def __repr__(self):
        return f"tf.{self.name}"


float32, float64, int32, int64, uint32 = map(DType, ("float32", "float64", "int32", "int64", "uint32"))
_tapes = []
ROOT = ((), lambda g: ())  # of what a tape watches


def _name(dtype):
    return getattr(dtype, "name", dtype)


class Tensor:
    def __init__(self, value, made=None):
        self._value = _numpy.asarray(value)
        self._value.flags.writeable = False
        self.made = made

    __array_priority__ = 100
    shape = property(lambda self: self._value.shape)
    dtype = property(lambda self: DType(str(self._value.dtype)))

    def numpy(self):
        return self._value

    def __array__(self, dtype=None, copy=None):
        return self._value if dtype is None else self._value.astype(dtype)

    def __setitem__(self, at, value):
        raise TypeError("'tensorflow.python.framework.ops.EagerTensor' object does not support item assignment")

    def __bool__(self):
        return bool(self._value)

    def __float__(self):
        return float(self._value)

    def __int__(self):
        return int(self._value)

    def __len__(self):
        return len(self._value)

    __hash__ = None


class Variable:
    def __init__(self, initial_value, trainable=True, name=None, dtype=None):
        self._value = _numpy.array(initial_value._value if isinstance(initial_value, Tensor) else initial_value, _name(dtype))
        if dtype is None and self._value.dtype == "float64":
            self._value = self._value.astype("float32")
        self.trainable, self.name, self.made, self._sparse = trainable, f"{name or 'Variable'}:0", ROOT, False

    shape = property(lambda self: self._value.shape)
    dtype = property(lambda self: DType(str(self._value.dtype)))

    def numpy(self):
        return self._value.copy()

    def read_value(self):
        return Tensor(self._value.copy(), ((self,), lambda g: (g,)) if _tapes and self.trainable and self._value.dtype.kind == "f" else None)

    def assign(self, value):
        value = value._value if isinstance(value, (Tensor, Variable)) else _numpy.asarray(value, self._value.dtype)
        if value.shape != self._value.shape:
            raise ValueError(f"Cannot assign value to variable '{self.name}': Shape mismatch. The variable shape {self._value.shape}, and the assigned value shape {value.shape} are incompatible.")
        if value.dtype != self._value.dtype:
            raise TypeError(f"Cannot assign value of {value.dtype} to variable '{self.name}' of {self._value.dtype}")
        self._value = value.copy()
        return self

    def assign_add(self, delta):
        return self.assign(self.read_value() + delta)

    def assign_sub(self, delta):
        return self.assign(self.read_value() - delta)

    def __array__(self, dtype=None, copy=None):
        return self._value.copy()

    __hash__ = object.__hash__


class IndexedSlices:
    """The gradient of what was gathered."""

    def __init__(self, values, indices):
        self.values, self.indices = values, indices


def convert_to_tensor(value, dtype=None):
    if isinstance(value, Variable):
        return value.read_value()
    if isinstance(value, IndexedSlices):
        return value.values
    return value if isinstance(value, Tensor) else constant(value, dtype)


def constant(value, dtype=None):
    value = _numpy.array(value, _name(dtype))
    if dtype is None and value.dtype in ("float64", "int64"):
        value = value.astype({"f": "float32", "i": "int32"}[value.dtype.kind])
    return Tensor(value)


def _apply(function, *values, **options):
    values = [v.read_value() if isinstance(v, Variable) else v for v in values]
    kinds = {str(v.dtype.name) for v in values if isinstance(v, Tensor)}
    if len(kinds) > 1:
        raise TypeError(f"cannot compute as the inputs have different types: {', '.join(sorted(kinds))}")
    arrays = _reverse.weak([v._value if isinstance(v, Tensor) else v for v in values])
    y, back = function(*arrays, **options)
    y = _numpy.array(y)
    if y.dtype == "float64" and "float64" not in kinds and options.get("dtype") != "float64":
        y = y.astype("float32")
    parents = tuple(v if isinstance(v, Tensor) and v.made is not None else None for v in values)
    recorded = _tapes and y.dtype.kind == "f" and any(p is not None for p in parents)
    return Tensor(y, (parents, lambda g: tuple(None if p is None or d is None else _numpy.asarray(d, p._value.dtype) for p, d in zip(parents, back(g)))) if recorded else None)


def _operators(kind):
    for name, function in (("add", _reverse.add), ("sub", _reverse.subtract), ("mul", _reverse.multiply), ("truediv", _reverse.divide), ("matmul", _reverse.matmul), ("pow", _reverse.power)):
        setattr(kind, f"__{name}__", lambda self, other, function=function: _apply(function, self, other))
        setattr(kind, f"__r{name}__", lambda self, other, function=function: _apply(function, other, self))
    kind.__neg__ = lambda self: _apply(_reverse.multiply, self, -1)
    kind.__getitem__ = lambda self, at: _apply(_reverse.index, self, at=at)
    for name, function in (("lt", _numpy.less), ("le", _numpy.less_equal), ("gt", _numpy.greater), ("ge", _numpy.greater_equal)):
        setattr(kind, f"__{name}__", lambda self, other, function=function: Tensor(function(self._value, getattr(other, "_value", other))))


for _kind in (Tensor, Variable):
    _operators(_kind)


class GradientTape:
    def __init__(self, persistent=False, watch_accessed_variables=True):
        if not watch_accessed_variables:
            raise NotImplementedError("the stand-in watches variables that are accessed")
        self._persistent, self._used = persistent, False

    def __enter__(self):
        _tapes.append(self)
        return self

    def __exit__(self, *of):
        _tapes.remove(self)

    def watch(self, tensor):
        if tensor.made is None:
            tensor.made = ROOT

    def gradient(self, target, sources, output_gradients=None):
        if self._used and not self._persistent:
            raise RuntimeError("A non-persistent GradientTape can only be used to compute one set of gradients (or jacobians)")
        self._used = True
        targets = target if isinstance(target, (list, tuple)) else [target]
        given = output_gradients if output_gradients is not None else [None] * len(targets)
        pairs = [(t, _numpy.ones_like(t._value) if g is None else g._value) for t, g in zip(targets, given)]
        single = not isinstance(sources, (list, tuple))
        found = _reverse.gradients(pairs, [sources] if single else sources)
        out = [None if g is None else IndexedSlices(Tensor(g), None) if getattr(s, "_sparse", False) else Tensor(g) for s, g in zip([sources] if single else sources, found)]
        return out[0] if single else out


class Module:
    def __init__(self, name=None):
        self._name = name or type(self).__name__.lower()

    @property
    def variables(self):
        found = []
        for value in vars(self).values():
            for each in value if isinstance(value, (list, tuple)) else [value]:
                of = [each] if isinstance(each, Variable) else each.variables if isinstance(each, Module) else []
                found += [v for v in of if all(v is not other for other in found)]
        return tuple(found)

    @property
    def trainable_variables(self):
        return tuple(v for v in self.variables if v.trainable)

    @property
    def non_trainable_variables(self):
        return tuple(v for v in self.variables if not v.trainable)


def cast(x, dtype):
    return _apply(_reverse.cast, convert_to_tensor(x), dtype=_name(dtype))


def matmul(a, b, transpose_b=False):
    return _apply(_reverse.matmul, a, transpose(b) if transpose_b else b)


def transpose(a, perm=None):
    return _apply(_reverse.transpose, a, axes=perm)


def reshape(tensor, shape):
    return _apply(_reverse.reshape, tensor, shape=tuple(shape))


def reduce_sum(input_tensor, axis=None, keepdims=False):
    return _apply(_reverse.sum, input_tensor, axis=axis, keepdims=keepdims)


def reduce_mean(input_tensor, axis=None, keepdims=False):
    return _apply(_reverse.mean, input_tensor, axis=axis, keepdims=keepdims)


def reduce_max(input_tensor, axis=None, keepdims=False):
    return _apply(_reverse.max, input_tensor, axis=axis, keepdims=keepdims)


def sqrt(x):
    return _apply(_reverse.sqrt, x)


def tanh(x):
    return _apply(_reverse.tanh, x)


def exp(x):
    return _apply(_reverse.exp, x)


def gather(params, indices):
    if isinstance(params, Variable):
        params._sparse = True
    return _apply(_reverse.index, params, at=indices._value)


def one_hot(indices, depth):
    return Tensor((indices._value[..., None] == _numpy.arange(depth)).astype("float32"))


def stop_gradient(x):
    return Tensor(x._value)


def zeros(shape, dtype=float32):
    return Tensor(_numpy.zeros(shape, _name(dtype)))


def ones(shape, dtype=float32):
    return Tensor(_numpy.ones(shape, _name(dtype)))


class math:
    log = staticmethod(lambda x: _apply(_reverse.log, x))
    tanh, exp, sqrt = staticmethod(tanh), staticmethod(exp), staticmethod(sqrt)


class nn:
    relu = staticmethod(lambda x: _apply(_reverse.maximum, x, 0))
    tanh = staticmethod(tanh)

    @staticmethod
    def log_softmax(logits, axis=-1):
        shifted = logits - stop_gradient(reduce_max(logits, axis, True))
        return shifted - math.log(reduce_sum(exp(shifted), axis, True))


class random:
    _generator = _numpy.random.default_rng()

    @staticmethod
    def set_seed(seed):
        random._generator = _numpy.random.default_rng(int(seed))

    @staticmethod
    def uniform(shape, minval=0.0, maxval=1.0, dtype=float32):
        return Tensor(random._generator.uniform(minval, maxval, shape).astype(_name(dtype)))

    @staticmethod
    def normal(shape, mean=0.0, stddev=1.0, dtype=float32):
        return Tensor(random._generator.normal(mean, stddev, shape).astype(_name(dtype)))


class config:
    @staticmethod
    def set_visible_devices(devices, device_type=None):
        pass


from . import keras  # noqa: E402
