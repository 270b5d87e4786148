"""Checks of arguments before TensorFlow is imported."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
ATTRIBUTE = "precheck"


def prechecked(check: Callable[..., object]) -> Callable[[Function], Function]:
    """Give a data source, model, task or schedule a check that is called before TensorFlow is imported.

    Mistakes then show at once. The function itself must find them as well: it may be called without the check.
    """

    def give(function: Function) -> Function:
        setattr(function, ATTRIBUTE, check)
        return function

    return give


def run_precheck(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Call the check of a function, if it has one, with what its node of the config gives, or else its defaults."""
    check = getattr(function, ATTRIBUTE, None)
    if check is None:
        return
    parameters = inspect.signature(function).parameters
    known = {name: each.default for name, each in parameters.items() if each.default is not each.empty} | dict(given)
    wanted = inspect.signature(check).parameters
    if any(each.kind is each.VAR_KEYWORD for each in wanted.values()):  # it takes all that the function takes
        wanted = parameters
    if all(name in known for name in wanted):
        check(**{name: known[name] for name in wanted})


FRAMEWORKS = frozenset(("tensorflow", "keras"))
SELDOM = frozenset(
    (
        *("keras.visualization", "keras.wrappers", "keras.src.visualization"),
        *("keras._tf_keras.keras.visualization", "keras._tf_keras.keras.wrappers"),
    )
)
"""Packages that Keras imports, scikit-learn and Matplotlib with them, and that no run uses."""
KNOWN = frozenset(("__class__", "__spec__", "__name__", "__loader__", "__package__", "__file__", "__warningregistry__"))
"""Attributes of a module that can be asked for before it is executed."""
WAITING = "_deferred_loader"


class NeedsFramework(BaseException):
    """Say that TensorFlow or Keras is needed where neither may be imported yet.

    It is not an `Exception`, so that code which tolerates a missing package does not mistake it for one.
    """


class _Deferred(ModuleType):
    """Stand in for a module that is executed, in place, on the first access to one of its attributes."""

    def __getattribute__(self, name: str) -> Any:
        if name not in KNOWN:
            waiting = object.__getattribute__(self, "__dict__").get(WAITING)
            if waiting is not None:
                waiting.execute(self)
        return ModuleType.__getattribute__(self, name)  # its class may have changed, which super() would refuse


class _DeferredLoader(Loader):
    """Execute a module on first use, once, whichever thread comes first."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder
        self._lock = threading.RLock()
        self._executing = False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        object.__setattr__(module, WAITING, self)

    def execute(self, module: ModuleType) -> None:
        """Execute the module; what it imports meanwhile sees it half executed, as with any import."""
        if self._finder.forbidding and module.__name__ in FRAMEWORKS:
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
        """Return the spec of such a module with a loader that waits; None for any other."""
        if fullname not in FRAMEWORKS | SELDOM:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferredLoader(spec.loader, self)
        return spec


def defer_frameworks() -> None:
    """Defer every later `import tensorflow` and `import keras` of this process to the first use of the module.

    If they are imported already, nothing changes. Packages that Keras imports and no run uses are deferred, too.
    """
    if _finder() is None:
        sys.meta_path.insert(0, _Finder())


@contextmanager
def without_frameworks() -> Iterator[None]:
    """Defer TensorFlow and Keras, and raise `NeedsFramework` inside the block where one would have to be imported.

    Modules whose import ends that way count as not imported. If TensorFlow is imported already, nothing changes.
    """
    defer_frameworks()
    finder = _finder()
    assert finder is not None
    finder.forbidding += 1
    try:
        yield
    finally:
        finder.forbidding -= 1


def _finder() -> _Finder | None:
    return next((each for each in sys.meta_path if isinstance(each, _Finder)), None)
