"""Keras of the stand-in for TensorFlow: layers make their variables when they are called first, and number themselves in the process."""

from . import layers
from .layers import Layer


class Sequential(Layer):
    def __init__(self, layers=None, name=None):
        super().__init__(name=name)
        self.layers = list(layers or [])

    def call(self, inputs, training=None):
        for layer in self.layers:
            inputs = layer(inputs, training=training)
        return inputs
