"""A small network of JAX: pairs of functions, as in stax, and an object, as in flax."""

import jax
import jax.numpy as jnp


def dense(width):
    def init(key, shape):
        inputs = shape[-1]
        most = (6 / (inputs + width)) ** 0.5
        return shape[:-1] + (width,), (jax.random.uniform(key, (inputs, width), minval=-most, maxval=most), jnp.zeros((width,)))

    def apply(params, x, **kwargs):
        weight, bias = params
        return x @ weight + bias

    return init, apply


def tanh():
    return lambda key, shape: (shape, ()), lambda params, x, **kwargs: jnp.tanh(x)


def dropout(rate):
    def apply(params, x, rng=None, train=False):
        return x * jax.random.bernoulli(rng, 1 - rate, x.shape) / (1 - rate) if train else x

    return lambda key, shape: (shape, ()), apply


class Norm:
    """Batch norm, with a running mean and variance."""

    def init(self, key, x):
        width = x.shape[-1:]
        return {"params": {"bias": jnp.zeros(width), "scale": jnp.ones(width)}, "batch_stats": {"mean": jnp.zeros(width), "var": jnp.ones(width)}}

    def apply(self, variables, x, train, rngs=None, mutable=False):
        own, running = variables["params"], variables["batch_stats"]
        mean, var = running["mean"], running["var"]
        if train:
            mean = x.mean(0)
            var = ((x - mean) * (x - mean)).mean(0)
            running = {"mean": 0.9 * running["mean"] + 0.1 * mean, "var": 0.9 * running["var"] + 0.1 * var}
        y = (x - mean) / jnp.sqrt(var + 1e-5) * own["scale"] + own["bias"]
        return (y, {"batch_stats": running}) if mutable else y


def loss(logits, targets):
    return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(targets, logits.shape[1])).sum(1).mean()


def build(width=32):
    return [dense(width), Norm(), tanh(), dropout(0.1), dense(width), tanh(), dense(5)]
