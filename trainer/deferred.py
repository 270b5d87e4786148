"""Program start-up: early argument checks, deferred imports of TensorFlow, quiet output, and signals."""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any, TypeVar, cast

from hookline.trainer.errors import Interrupted, one_line

Function = TypeVar("Function", bound=Callable[..., Any])
ATTRIBUTE = "precheck"


def prechecked(check: Callable[..., object]) -> Callable[[Function], Function]:
    """Return a decorator that checks arguments before each call, and in a config before TensorFlow is imported."""

    def give(function: Function) -> Function:
        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            run_precheck(checked, inspect.signature(function).bind(*args, **kwargs).arguments)
            return function(*args, **kwargs)

        setattr(checked, ATTRIBUTE, check)
        return cast("Function", checked)

    return give


def run_precheck(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Call a function's check, if any, with the given arguments and the defaults, unless a needed one is missing."""
    check = getattr(function, ATTRIBUTE, None)
    if check is None:
        return
    parameters = inspect.signature(function).parameters
    known = {name: each.default for name, each in parameters.items() if each.default is not each.empty} | dict(given)
    wanted = inspect.signature(check).parameters
    if any(each.kind is each.VAR_KEYWORD for each in wanted.values()):  # it takes all arguments of the function
        wanted = parameters
    if all(name in known for name in wanted):
        check(**{name: known[name] for name in wanted})


FRAMEWORKS = frozenset(("tensorflow", "keras"))
VISUALIZATION = ("keras.visualization", "keras.src.visualization", "keras._tf_keras.keras.visualization")
UNUSED = frozenset((*VISUALIZATION, "keras.wrappers", "keras._tf_keras.keras.wrappers"))
"""Packages that Keras imports but no run uses; they would also import scikit-learn and Matplotlib."""
KNOWN = frozenset(("__class__", "__spec__", "__name__", "__loader__", "__package__", "__file__", "__warningregistry__"))
"""Attributes of a module that can be read before it is executed."""
WAITING = "_deferred_loader"


class NeedsFramework(BaseException):
    """Report a use of TensorFlow or Keras while it is forbidden; `except Exception` does not catch it."""


class _Deferred(ModuleType):
    """Stand in for a module that is executed, in place, on the first access to one of its attributes."""

    def __getattribute__(self, name: str) -> Any:
        if name not in KNOWN:
            waiting = object.__getattribute__(self, "__dict__").get(WAITING)
            if waiting is not None:
                waiting.execute(self)
        return ModuleType.__getattribute__(self, name)  # not super(): the class may have changed


class _DeferredLoader(Loader):
    """Execute a module once, on first use, in whichever thread uses it first."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = threading.RLock()
        self._executing = False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        object.__setattr__(module, WAITING, self)

    def execute(self, module: ModuleType) -> None:
        """Execute the module; modules that it imports see it partly executed, as with any import."""
        if FINDER.forbidding and module.__name__ in FRAMEWORKS:
            raise NeedsFramework(module.__name__)
        with self._lock:
            content = object.__getattribute__(module, "__dict__")
            if self._executing or WAITING not in content:
                return
            self._executing = True
            module.__loader__ = module.__spec__.loader = self._loader  # type: ignore[union-attr]
            try:
                self._loader.exec_module(module)
                del content[WAITING]
                module.__class__ = ModuleType
            finally:
                self._executing = False


class _Finder(MetaPathFinder):
    """Find the modules whose import is deferred."""

    def __init__(self) -> None:
        self.forbidding = 0  # how many nested blocks forbid their use

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Return the spec of a deferred module, with a loader that defers execution; None for any other module."""
        if fullname not in FRAMEWORKS | UNUSED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferredLoader(spec.loader)
        return spec


FINDER = _Finder()


def defer_frameworks() -> None:
    """Defer every later import of TensorFlow, Keras and unused packages of Keras to the first use of the module."""
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)


@contextmanager
def without_frameworks() -> Iterator[None]:
    """Defer TensorFlow and Keras, and raise `NeedsFramework` inside the block if one would have to be imported."""
    defer_frameworks()
    FINDER.forbidding += 1
    try:
        yield
    finally:
        FINDER.forbidding -= 1


def open_streams() -> None:
    """Open closed standard streams on the null device, or the next file would get their descriptor and output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number: this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


@contextmanager
def quiet_start(*, errors: bool = True) -> Iterator[None]:
    """Import TensorFlow, look for devices and run the block, discarding what is written to standard error."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if errors else "3")
    defer_frameworks()  # and packages of Keras that no run uses
    with silent():
        import tensorflow as tf

        tf.config.list_physical_devices()
        yield


@contextmanager
def silent() -> Iterator[None]:
    """Discard what is written to standard error inside the block, also by C++ libraries."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show a warning to the user as one line, without the place in the code that raised it."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *place, **more: f"Warning: {one_line(str(message))}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Raise `Interrupted` on SIGTERM inside the block, as SIGINT raises KeyboardInterrupt, so that files are closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(f"Ended by {signal.Signals(number).name}.", number)
