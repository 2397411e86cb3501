"""The modules that foreigntest asks for, of TensorFlow."""

import tensorflow as tf


class Linear(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(tf.random.normal((3, 2)), name="weight")
        self.bias = tf.Variable(tf.random.normal((3,)), name="bias")

    def __call__(self, x):
        return tf.matmul(x, self.weight, transpose_b=True) + self.bias


class Noise(tf.keras.layers.Layer):
    def build(self, input_shape):
        self.mean = self.add_weight(shape=(3,), initializer="zeros", trainable=False, name="mean")

    def call(self, x, training=None):
        if not training:
            return x
        self.mean.assign(self.mean / 2 + tf.reduce_mean(x, 0) / 2)
        return x * 2 * tf.cast(tf.random.uniform(x.shape) < 0.5, tf.float32)


class Scaled(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(tf.random.uniform((3, 3)), name="weight")
        self.scale = tf.Variable([1.5], trainable=False, name="scale")

    def __call__(self, x):
        return self.scale * tf.matmul(x, self.weight, transpose_b=True)


class Careful(tf.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def __call__(self, x):
        if tf.reduce_max(x) > 1e6:
            raise ValueError("too large")
        return tf.matmul(x, self.weight, transpose_b=True)


def loss(logits, targets):
    return -tf.reduce_sum(logits * tf.one_hot(targets, logits.shape[1])) / len(targets)


def build():
    scaled = Scaled()
    return [Linear(), Noise(), scaled, Careful(scaled.weight)]
