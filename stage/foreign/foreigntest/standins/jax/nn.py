"""jax.nn of the stand-in."""

import numpy as _numpy

from . import Array
from . import lax


def relu(x):
    from . import numpy

    return numpy.maximum(x, 0)


def log_softmax(x, axis=-1):
    from . import numpy

    shifted = x - lax.stop_gradient(x.max(axis, keepdims=True))
    return shifted - numpy.log(numpy.exp(shifted).sum(axis, keepdims=True))


def one_hot(x, num_classes):
    return Array((x._value[..., None] == _numpy.arange(num_classes)).astype("float32"), None, x._traced)
