"""Runs code right before and right after the first `import torch` of a process, and after other imports."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from typing import Any, Callable, cast


def when_torch_loads(before: Callable[[Any], None], after: Callable[[], None]) -> None:
    """Calls `before(spec)` when torch is found, and `after()` when it has been executed."""
    sys.meta_path.insert(0, _Finder("torch", before, after))


def when_module_loads(name: str, change: Callable[[Any], None]) -> None:
    """Calls `change(module)` when the module `name` has been executed; at once if it has been before.

    A change that fails leaves the module as it is: what it was to change is then of another version.
    """

    def after() -> None:
        with contextlib.suppress(Exception):
            change(sys.modules[name])

    if name in sys.modules:
        after()
    else:
        sys.meta_path.insert(0, _Finder(name, lambda spec: None, after))


class _Finder:
    def __init__(self, name: str, before: Callable[[Any], None], after: Callable[[], None]) -> None:
        self._name, self._before, self._after = name, before, after

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None and spec.origin:
            spec.loader = cast(Any, _Loader(spec.loader, spec, self._before, self._after))
        return spec


class _Loader:
    """torch's own loader, with a call before and after; it takes itself out of sight."""

    def __init__(
        self, loader: Any, spec: Any, before: Callable[[Any], None], after: Callable[[], None]
    ) -> None:
        self._loader, self._spec, self._before, self._after = loader, spec, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._spec.loader = module.__loader__ = self._loader
        self._before(self._spec)
        self._loader.exec_module(module)
        self._after()
