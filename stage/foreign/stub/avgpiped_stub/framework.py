"""What the worker needs of a framework."""

from .program import Refused


class Framework:
    """The modules of one build, of one framework: the seam between requests and whoever computes. A class for each framework has all of this.

    Requests have the fields of docs/worker-protocol.md. What cannot be used is refused by Refused, with the user's line; any other exception is the
    user's program's. After either the next request is answered.
    """

    package = ""  # what a program imports to use it; it may not have this name itself
    returns = ""  # what build may return, as errors say it
    copies = False  # it computes with copies of parameters, which forwards make anew where they are told so, and has gradients until they are gathered
    locks = False  # it wants to be told which memory of the arena crosses, to page-lock it
    tf32 = False  # on a GPU products may round their operands to TF32

    def __init__(self, arena, threads, program, function, seed):
        self.arena, self.threads, self.program, self.build_seed = arena, threads, program, seed
        self.function = function  # the user's loss; None: there is none
        self.name = ""  # the framework and its version
        self.units = []  # (name, module), in the order in which they run
        self.kept = {}  # by the name of a forward: what its backward needs
        self.samples = None  # those that the user's program makes: see samples.py

    @staticmethod
    def environment(threads):
        """Variables that the framework reads when it is imported."""
        return {}

    @staticmethod
    def begin(seed):
        """Seeds the framework's random numbers before build, if it is there."""
        raise NotImplementedError

    @staticmethod
    def made(built):
        """Reports whether build returned modules of this framework."""
        raise NotImplementedError

    def read(self, samples):
        """Takes the samples that the user's program makes, if it does: forwards get their numbers. A framework that reads any also has what samples.py calls."""
        if samples is not None:
            samples.refuse(f"makes samples for modules of {self.package}; expected modules of PyTorch with data.samples, or data.files")

    def build(self, built, cut, inputs):
        """Takes apart what build returned, and describes each module, its parameters and its running statistics, as the answer to `build` has them."""
        raise NotImplementedError

    def probe(self, request):
        """Runs each module by itself on made-up inputs, and says what it gives, keeps and takes."""
        raise NotImplementedError

    def write(self, name, at):
        """Writes what a parameter or a running statistic is after build to the arena."""
        raise NotImplementedError

    def bind(self, request):
        """Notes where parameters of consecutive modules and their gradients lie: a set to compute with."""
        raise NotImplementedError

    def forward(self, request):
        """Runs consecutive modules of a set, each with its seed, and the loss where it is wanted. With "keep" their backward follows."""
        raise NotImplementedError

    def backward(self, request):
        """Runs the backward of a forward that was kept: adds to gradients of parameters and writes those of inputs."""
        raise NotImplementedError

    def gather(self, name):
        """Adds the gradients of a set that are here alone to where they are to be, and sets them to zero. Only those that compute with copies have any."""

    def finish(self):
        """Waits until all that was asked for is done, where a device has a queue: times are those of what was asked for, and so are errors."""

    def lost(self, error):
        """Reports whether a device has failed, of which an error tells, so that nothing more can be computed in this process."""
        return False

    def lock(self, at, size):
        """Page-locks memory of the arena, until `unlock` of the place, where that makes copies faster."""

    def unlock(self, at):
        """Ends that. The worker frees the memory then."""

    def drop(self, keep):
        """Forgets what a backward would have needed."""
        self.kept.pop(keep, None)

    def kind(self, unit):
        """What errors call the type of a module."""
        return type(unit).__name__

    def called(self, number):
        name, unit = self.units[number]
        return f"{name} ({self.kind(unit)})"

    def refuse(self, text, *callables):
        """Refuses what the first of functions is about that the user wrote; build, unless he wrote any."""
        raise Refused(text, self.program.at(*callables))
