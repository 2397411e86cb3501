"""The modules that foreigntest asks for, of JAX."""

import jax
import jax.numpy as jnp


def linear():
    def init(key, shape):
        weight, bias = jax.random.split(key)
        return shape[:-1] + (3,), (jax.random.normal(weight, (3, 2)), jax.random.normal(bias, (3,)))

    def apply(params, x):
        weight, bias = params
        return x @ weight.T + bias

    return init, apply


class Noise:
    def init(self, key, x):
        return {"batch_stats": {"mean": jnp.zeros((3,))}}

    def apply(self, variables, x, train, rngs=None, mutable=()):
        if not train:
            return x
        y = x * jax.random.bernoulli(rngs["dropout"], 0.5, x.shape) * 2
        mean = variables["batch_stats"]["mean"] / 2 + x.mean(0) / 2
        return (y, {"batch_stats": {"mean": mean}}) if mutable else y


class Scaled:
    """Its scale is of a collection that is not trained."""

    def __init__(self, shared):
        self.shared = shared

    def init(self, key, x):
        self.shared["weight"] = jax.random.uniform(key, (3, 3))
        return {"params": {"weight": self.shared["weight"]}, "constants": {"scale": jnp.array([1.5])}}

    def apply(self, variables, x, rngs=None):
        return variables["constants"]["scale"] * (x @ variables["params"]["weight"].T)


class Careful:
    def __init__(self, shared):
        self.shared = shared

    def init(self, key, x):
        return {"params": {"weight": self.shared["weight"]}}

    def apply(self, variables, x, rngs=None):
        jax.debug.callback(too_large, x.max())
        return x @ variables["params"]["weight"].T


def too_large(most):
    if most > 1e6:
        raise ValueError("too large")


def loss(logits, targets):
    return -(logits * jax.nn.one_hot(targets, logits.shape[1])).sum() / len(targets)


def build():
    shared = {}
    return [linear(), Noise(), Scaled(shared), Careful(shared)]
