"""Programs of TensorFlow that cannot be used, each a function. The comment at a line says which of them are to name it."""

import tensorflow as tf
from tensorflow.keras.layers import Dense, Layer


def number():  # at: number
    return 3


def mixed():  # at: mixed
    return [Dense(2), 3]


class Wide(tf.Module):
    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(tf.ones((2, 2), tf.float64), name="kernel", dtype=tf.float64)

    def __call__(self, x):  # at: double
        return tf.cast(tf.matmul(tf.cast(x, tf.float64), self.kernel), tf.float32)


def double():
    return [Wide()]


class Raises(Layer):
    def call(self, x):
        raise ValueError("not today")  # at: raises


def raises():
    return [Raises()]


class Dict(Layer):
    def call(self, x):  # at: gives_dict
        return {"x": x}


def gives_dict():
    return [Dict()]


class Double(Layer):
    def call(self, x):  # at: gives_double
        return tf.cast(x, tf.float64)


def gives_double():
    return [Double()]


class Stops(Layer):
    def call(self, x):  # at: no_gradient
        return tf.stop_gradient(x)


def no_gradient():
    return [Dense(2), Stops(), Dense(2)]


class Other(tf.Module):
    def __call__(self):  # at: other_arguments
        return 0


def other_arguments():
    return [Other()]


class Hidden(Layer):
    calls = 0

    def call(self, x):  # at: hidden_state
        self.calls += 1
        return x * float(self.calls)


def hidden_state():
    return [Hidden()]


class Borrows(Layer):
    def __init__(self, of):
        super().__init__()
        self.__dict__["of"] = (lambda: of,)

    def call(self, x):
        return tf.matmul(x, self.of[0]().kernel)


def borrows():  # at: borrows
    first = Dense(2)
    return [first, Borrows(first)]
