"""The user's program, and what is said of an error in it."""

import contextlib
import difflib
import importlib.util
import inspect
import os
import re
import sys
import traceback

LONGEST_TEXT = 8 << 10  # of what an error says
MOST_FRAMES = 100
CALLED_FROM, CALLED_AT = re.compile(r'^ *File "(.+?)", line (\d{1,9})', re.M), re.compile(r"^  (/.+?)\((\d{1,9})\): ", re.M)
STUB = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")  # where the files lie that are none of the user's


class Refused(Exception):
    """What the user's program or the worker gave cannot be used. The text says what was found and what was expected."""

    def __init__(self, text, at=("", 0)):
        super().__init__(text)
        self.at = at  # file and line of what was refused


CALLED = "_avgpiped_called"  # of an error: what was called that ended with it, and the place that says so


class Program:
    """The user's program: which files are his, and where what he wrote stands."""

    def __init__(self, path):
        self.path, self.module, self.build = path, None, None
        self.directory = os.path.join(os.path.dirname(os.path.abspath(path)), "")

    def owns(self, file):
        """Reports whether the user wrote a file: it lies beside the program, and in no installed package."""
        return file.startswith(self.directory) and "<frozen " not in file and "site-packages" not in file and "dist-packages" not in file

    def at(self, *callables):
        """File and line of the first of the functions that the user wrote."""
        for call in callables + (self.build,):
            code = getattr(call, "__code__", None)
            if code is not None and self.owns(code.co_filename):
                return code.co_filename, code.co_firstlineno
        return "", 0

    def name(self, error, what, *callables):
        """Notes what was called that ended with an error, for one that comes from no line of the user's, or from one that runs for many."""
        if not isinstance(error, Refused) and CALLED not in vars(error):
            object.__setattr__(error, CALLED, (what, self.at(*callables)))

    @contextlib.contextmanager
    def calling(self, what, *callables):
        try:
            yield
        except Exception as error:
            self.name(error, what, *callables)
            raise

    def load(self, function, reserved):
        """Runs the user's file as a module, of which the directory is where it finds others, and returns the function that builds."""
        self.module = self.run(reserved)
        self.build = self.function(function, "returns the modules")
        return self.build

    def function(self, name, what):
        """A function of the file, which does something; None for no name."""
        if not name:
            return None
        found = getattr(self.module, name, None)
        if not callable(found):
            there = [other for other, value in vars(self.module).items() if callable(value) and getattr(value, "__module__", None) == self.module.__name__]
            near = difflib.get_close_matches(name, there, 3) or there[:5]
            raise Refused(f"{self.path} has no function {name}; expected one, which {what}" + ("; it has " if near else "") + ", ".join(near), self.at())
        return found

    def run(self, reserved):
        path = self.path
        if self.directory not in sys.path:
            sys.path.insert(0, self.directory)
        name = os.path.splitext(os.path.basename(path))[0]
        found = importlib.util.spec_from_file_location(name, os.path.abspath(path))
        if found is None:
            raise Refused(f"{path} is no Python file; expected a name that ends in .py")
        loaded = sys.modules.get(name)
        if name in reserved or loaded is not None and getattr(loaded, "__file__", None) != found.origin:
            raise Refused(f"{path} has the name of a module that is part of Python or was imported before; expected a name of its own")
        sys.modules[name] = module = importlib.util.module_from_spec(found)
        try:
            found.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    def takes(self, function, name, args):
        """Refuses arguments that a function does not take, or that it lacks, which would have no line of the user's."""
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return  # it says nothing of itself
        try:
            signature.bind(**args)
        except TypeError as error:
            there = ", ".join(signature.parameters) or "none"
            raise Refused(f"{name}: {error}; its arguments are: {there}", self.at(function)) from None


def report(error, program):
    """What the worker is told of an error: the user's line, where one had a part in it."""
    kind = "" if isinstance(error, Refused) else type(error).__name__
    try:
        frames = [f for f in traceback.extract_tb(error.__traceback__, limit=-MOST_FRAMES) if not f.filename.startswith(STUB)]
        file, line = place(error, frames, program)
        lines = [text[:LONGEST_TEXT].rstrip("\n") for text in traceback.format_list(frames)] if kind else []
        return {"type": kind, "message": message(error), "file": file, "line": line, "traceback": lines}
    except BaseException as inner:
        return {"type": kind, "message": f"its text and place cannot be had: {type(inner).__name__}", "file": "", "line": 0, "traceback": []}


def place(error, frames, program):
    if isinstance(error, Refused):
        return error.at
    owns = program.owns if program else lambda file: False
    if isinstance(error, SyntaxError) and error.filename and owns(os.path.abspath(error.filename)):
        return error.filename, error.lineno or 0
    own = [(f.filename, f.lineno or 0) for f in frames if owns(os.path.abspath(f.filename))]
    if own:
        return own[-1]
    # What is compiled runs where no line of the user's stands. JAX has the place of an error in a callback in the text, the innermost call first or last.
    text = message(error)
    own = [(file, int(line)) for file, line in CALLED_FROM.findall(text)] + [(file, int(line)) for file, line in reversed(CALLED_AT.findall(text))]
    own = [(file, line) for file, line in own if owns(os.path.abspath(file))]
    return own[-1] if own else called(error)[1]


def called(error):
    return vars(error).get(CALLED, ("", ("", 0)))


def message(error):
    """The text of an error, whatever its own functions do."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except BaseException as inner:
        return f"its text cannot be had: {type(inner).__name__}"
    if isinstance(error, ModuleNotFoundError):
        text += f"; the interpreter is {sys.executable}"
    if isinstance(error, SystemExit):
        text += '; expected that nothing ends the interpreter: what the file does as a program of its own stands below `if __name__ == "__main__":`'
    if len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"
    return ": ".join(filter(None, (called(error)[0], text)))
