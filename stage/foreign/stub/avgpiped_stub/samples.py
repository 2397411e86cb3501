"""Samples that the user's program makes."""

import random
import sys

from .program import Refused

ALL_BITS = (1 << 64) - 1


class Samples:
    """The samples that a function of the user's file returns. Only their numbers cross: that of a sample in an epoch is its own, and the number of all samples for each epoch before."""

    MOST_HELD = 8  # micro-batches whose targets are still wanted

    def __init__(self, program, function, args, collate, seed):
        self.program, self.function, self.seed, self.held = program, function, seed, {}
        with program.calling("", function):
            made = function(**args)
        self.parts = made if self.pair(made) else (made,)
        for part in self.parts:
            if not callable(getattr(part, "__len__", None)) or not callable(getattr(part, "__getitem__", None)):
                self.refuse(f"returned {type(part).__name__}, which has no __len__ or no __getitem__; expected an object with both, as a Dataset of PyTorch, or a pair of two such")
        with program.calling(f"the number of samples of {function.__name__}", function):
            self.counts = [len(part) for part in self.parts]
        if min(self.counts) < 1 or sum(self.counts) >= 1 << 31:
            self.refuse(f"has {' and '.join(map(str, self.counts))} samples; expected at least 1, and less than 2^31 in all")
        self.collate, self.framework = collate, None
        self.has_inputs = self.has_targets = False  # what this process is asked for

    @staticmethod
    def pair(made):
        """Reports whether what was made is two sets, in a tuple or, as random_split has them, in a list; and not a list of two samples, which are pairs."""
        return isinstance(made, tuple) and len(made) == 2 or isinstance(made, list) and len(made) == 2 and not any(isinstance(part, (tuple, list)) for part in made)

    def refuse(self, text, *callables):
        raise Refused(f"{self.function.__name__} {text}", self.program.at(*callables, self.function))

    def describe(self):
        return {"train": self.counts[0], "held_out": sum(self.counts[1:])}

    def ends(self, first, last):
        """Notes which ends of the model this process has."""
        self.has_inputs, self.has_targets = self.has_inputs or first, self.has_targets or last

    def batch(self, count, which=0):
        """The numbers of some that are trained on."""
        return [i % self.counts[0] for i in range(which * count, (which + 1) * count)]

    def inputs(self, numbers):
        """The inputs of a micro-batch, as a list of tensors."""
        batch = self.make(numbers)
        if self.has_inputs and self.has_targets:
            self.held[tuple(numbers)] = batch[1]
            while len(self.held) > self.MOST_HELD:
                del self.held[next(iter(self.held))]
        return batch[0]

    def targets(self, numbers):
        """The targets of a micro-batch, as they are collated."""
        held = self.held.pop(tuple(numbers), self)
        return self.make(numbers)[1] if held is self else held

    def make(self, numbers):
        with self.framework.reading():
            batch = self.collated([self.sample(number) for number in numbers])
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            found = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, (tuple, list)) else type(batch).__name__
            self.refuse(f"has samples that make a {found}; expected a pair, of inputs and targets", *filter(None, (self.collate,)))
        inputs = list(batch[0]) if isinstance(batch[0], (tuple, list)) else [batch[0]]
        problem = self.framework.no_inputs(inputs, len(numbers))
        if problem:
            self.refuse(f"has samples whose inputs are {problem}", *filter(None, (self.collate,)))
        if self.collate:
            inputs = self.framework.own_memory(inputs)  # it may have given parts of the data set, and a module may write to its inputs
        return inputs, batch[1]

    def collated(self, samples):
        name = self.collate.__name__ if self.collate else "default_collate, since data.collate names no function"
        with self.program.calling(name, *filter(None, (self.collate,)), self.function):
            return (self.collate or self.framework.stack)(samples)

    def sample(self, number):
        """A sample, drawn with random numbers that are its own in its epoch, at both ends of a pipeline."""
        seed = mix(mix(self.seed) + number)
        random.seed(seed)
        self.framework.seed(seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(seed & 0xFFFFFFFF)
        index = number % sum(self.counts)
        with self.program.calling(f"sample {index}", self.function):
            if index < self.counts[0]:
                return self.parts[0][index]
            return self.parts[1][index - self.counts[0]]


def mix(x):
    """The finaliser of SplitMix64."""
    x = x + 0x9E3779B97F4A7C15 & ALL_BITS
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & ALL_BITS
    x = (x ^ x >> 27) * 0x94D049BB133111EB & ALL_BITS
    return x ^ x >> 31
