"""jax.random of the stand-in: keys are two numbers, as of threefry, and what is drawn follows from them alone; it is not what JAX draws."""

import hashlib as _hashlib

import numpy as _numpy

from . import Array


def _generator(key, *of):
    if not isinstance(key, Array) or key.dtype != "uint32" or key.shape != (2,):
        raise TypeError(f"Unexpected PRNG key type {type(key)}")
    digest = _hashlib.sha256(key._value.tobytes() + repr(of).encode()).digest()
    return _numpy.random.Generator(_numpy.random.PCG64(int.from_bytes(digest[:16], "little")))


def PRNGKey(seed):
    return Array(_numpy.array([0, int(seed) & 0xFFFFFFFF], "uint32"))  # 32 bits of the seed, as without 64-bit types


key = PRNGKey


def split(key, num=2):
    return Array(_generator(key, "split", num).integers(0, 1 << 32, (num, 2), "uint32"), None, key._traced)


def fold_in(key, data):
    return Array(_generator(key, "fold_in", int(data)).integers(0, 1 << 32, 2, "uint32"), None, key._traced)


def uniform(key, shape=(), dtype="float32", minval=0.0, maxval=1.0):
    return Array(_generator(key).uniform(minval, maxval, shape).astype(dtype), None, key._traced)


def normal(key, shape=(), dtype="float32"):
    return Array(_generator(key).standard_normal(shape).astype(dtype), None, key._traced)


def bernoulli(key, p=0.5, shape=()):
    return Array(_generator(key).random(shape) < p, None, key._traced)
