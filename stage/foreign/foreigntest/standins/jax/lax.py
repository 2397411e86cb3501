"""jax.lax of the stand-in."""

from . import Array


def stop_gradient(x):
    return Array(x._value, None, x._traced)
