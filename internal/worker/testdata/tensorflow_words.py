"""A small language model of Keras."""

from tensorflow import keras


def build():
    return keras.Sequential([keras.layers.Embedding(256, 16), keras.layers.Dense(16, activation="tanh"), keras.layers.Dropout(0.1), keras.layers.Dense(256)])
