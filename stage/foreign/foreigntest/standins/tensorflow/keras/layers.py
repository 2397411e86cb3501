"""keras.layers of the stand-in."""

import inspect as _inspect
import itertools as _itertools
import math as _math

import numpy as _numpy
import tensorflow as _tf

_numbers = _itertools.count()


class Layer(_tf.Module):
    def __init__(self, name=None):
        super().__init__(name)
        self.name = name or f"{type(self).__name__.lower()}_{next(_numbers)}"
        self.built = False

    def add_weight(self, shape=(), initializer="glorot_uniform", trainable=True, name=None, dtype="float32"):
        if initializer in ("zeros", "ones"):
            value = getattr(_tf, initializer)(shape, dtype)
        else:
            most = _math.sqrt(6 / (shape[0] + shape[-1]))
            value = _tf.random.uniform(shape, -most, most)
        made = _tf.Variable(value, trainable=trainable, name=f"{self.name}/{name}")
        self.__dict__.setdefault("_weights", []).append(made)
        return made

    def build(self, input_shape):
        pass

    def __call__(self, inputs, training=None):
        if not self.built:
            self.build(inputs.shape if isinstance(inputs, _tf.Tensor) else [x.shape for x in inputs])
            self.built = True
        takes = "training" in _inspect.signature(self.call).parameters
        return self.call(inputs, training=training) if takes else self.call(inputs)


class Dense(Layer):
    def __init__(self, units, activation=None, use_bias=True, name=None):
        super().__init__(name=name)
        self.units, self.activation, self.use_bias = units, activation, use_bias

    def build(self, input_shape):
        self.kernel = self.add_weight((input_shape[-1], self.units), name="kernel")
        self.bias = self.add_weight((self.units,), "zeros", name="bias") if self.use_bias else None

    def call(self, inputs):
        y = _tf.matmul(inputs, self.kernel)
        y = y if self.bias is None else y + self.bias
        return y if self.activation is None else getattr(_tf.nn, self.activation)(y)


class Embedding(Layer):
    def __init__(self, input_dim, output_dim, name=None):
        super().__init__(name=name)
        self.input_dim, self.output_dim = input_dim, output_dim

    def build(self, input_shape):
        self.embeddings = self.add_weight((self.input_dim, self.output_dim), name="embeddings")

    def call(self, inputs):
        return _tf.gather(self.embeddings, inputs)


class Dropout(Layer):
    """Draws from a state of its own, as that of Keras 3."""

    def __init__(self, rate, name=None):
        super().__init__(name=name)
        self.rate = rate
        self.state = _tf.Variable(_numpy.array([_numpy.random.randint(1 << 30), 0], "uint32"), trainable=False, name=f"{self.name}/seed_generator_state")

    def call(self, inputs, training=None):
        if not training:
            return inputs
        seed, count = self.state.numpy()
        self.state.assign(_numpy.array([seed, count + 1], "uint32"))
        kept = _numpy.random.default_rng([int(seed), int(count)]).random(inputs.shape) >= self.rate
        return inputs * _tf.constant(kept.astype("float32") / _numpy.float32(1 - self.rate))


class BatchNormalization(Layer):
    def __init__(self, momentum=0.99, epsilon=1e-3, name=None):
        super().__init__(name=name)
        self.momentum, self.epsilon = momentum, epsilon

    def build(self, input_shape):
        shape = (input_shape[-1],)
        self.gamma, self.beta = self.add_weight(shape, "ones", name="gamma"), self.add_weight(shape, "zeros", name="beta")
        self.moving_mean = self.add_weight(shape, "zeros", False, "moving_mean")
        self.moving_variance = self.add_weight(shape, "ones", False, "moving_variance")

    def call(self, inputs, training=None):
        mean, variance = self.moving_mean.read_value(), self.moving_variance.read_value()
        if training:
            mean = _tf.reduce_mean(inputs, 0)
            away = inputs - mean
            variance = _tf.reduce_mean(away * away, 0)
            for moving, now in ((self.moving_mean, mean), (self.moving_variance, variance)):
                moving.assign(moving * self.momentum + now * (1 - self.momentum))
        return (inputs - mean) / _tf.sqrt(variance + self.epsilon) * self.gamma + self.beta


class Flatten(Layer):
    def call(self, inputs):
        return _tf.reshape(inputs, (inputs.shape[0], -1))


class Activation(Layer):
    def __init__(self, activation, name=None):
        super().__init__(name=name)
        self.activation = activation

    def call(self, inputs):
        return getattr(_tf.nn, self.activation)(inputs)
