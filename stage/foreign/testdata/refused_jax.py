"""Programs of JAX that cannot be used, each a function. The comment at a line says which of them are to name it."""

import jax.numpy as jnp


def pair(apply, params=()):
    return (lambda key, shape: (shape, params)), apply


def number():  # at: number
    return 3


def mixed():  # at: mixed
    return [pair(lambda params, x: x), 3]


def no_pair():  # at: no_pair
    return [pair(lambda params, x: x), (number,)]


def init_gives_array():
    def apply(params, x):  # at: init_gives_array
        return x

    return [(lambda key, shape: jnp.zeros(shape), apply)]


class Lists:
    def init(self, key, x):
        return [jnp.zeros((2,))]

    def apply(self, variables, x, rngs=None):  # at: init_gives_list
        return x


def init_gives_list():
    return [Lists()]


def integers():
    def apply(params, x):  # at: integers
        return x * params[0]

    return [pair(apply, (jnp.ones((2,)), jnp.ones((2,), jnp.int32)))]


def floats():
    def apply(params, x):  # at: floats
        return x * params["rate"]

    return [pair(apply, {"rate": 1.0})]


def one_array():
    both = jnp.ones((2,))

    def apply(params, x):  # at: one_array
        return x * params["a"] * params["b"]

    return [pair(apply, {"a": both, "b": both})]


def raises():
    def apply(params, x):
        raise ValueError("not today")  # at: raises

    return [pair(apply)]


def shapes():
    def apply(params, x):
        return x @ jnp.ones((3, 3))  # at: shapes

    return [pair(apply)]


def gives_dict():
    def apply(params, x):  # at: gives_dict
        return {"x": x}

    return [pair(apply)]


def gives_half():
    def apply(params, x):  # at: gives_half
        return x.astype("float16")

    return [pair(apply)]


def by_values():
    def apply(params, x):
        return x if x.sum() > 0 else -x  # at: by_values

    return [pair(apply)]


def writes():
    def apply(params, x):
        x[0] = 0  # at: writes
        return x

    return [pair(apply)]


def other_arguments():
    def apply(params):  # at: other_arguments
        return params

    return [pair(apply)]


class Hidden:
    """Keeps what it has, as no function does, and is not compiled with it: a callback brings it."""

    calls = 0

    def init(self, key, x):
        return {}

    def apply(self, variables, x, rngs=None):  # at: hidden_state
        import jax

        return x * jax.pure_callback(self.count, jnp.ones(()))

    def count(self):
        self.calls += 1
        return self.calls


def hidden_state():
    return [Hidden()]
