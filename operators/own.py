"""Classes of the user's that become part of a flow, and calls to the user's code.

A flow needs something that can be opened again and again; a user has a class. A `Factory` stands in the place of the
class: called with the class's arguments, it gives a specification (`Own`), and a fresh instance is made for each run.
Whatever the user's code raises comes out as a `UserFunctionError` that names it and its line.
"""

__all__ = ["Factory", "Own", "call_user", "name_of", "origin"]

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from ..errors import FlowError, UserFunctionError


def name_of(fn: Any) -> str:
    """Name a function as a person would: without the function that it was made in, and a lambda as one.

    >>> name_of(print), name_of(lambda x: x), name_of(functools.partial(max, key=abs)), name_of(dict.get)
    ('print', 'lambda', 'max', 'dict.get')
    """
    fn = _bare(fn)
    name = (getattr(fn, "__qualname__", "") or type(fn).__qualname__).rpartition("<locals>.")[2]
    return "lambda" if name == "<lambda>" else str(name)


def origin(fn: Any, name: str = "") -> str:
    """Name a function and where it stands, so that an error leads to the user's own line."""
    name, fn = name or name_of(fn), _bare(fn)
    owner, method = (fn, "__init__") if isinstance(fn, type) else (type(fn), "__call__")
    code = getattr(fn, "__code__", None) or getattr(getattr(owner, method), "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def _bare(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.unwrap(fn)


def call_user(fn: Callable[..., Any], *args: Any, name: str = "") -> Any:
    """Call a function of the user's; whatever it raises comes out as a UserFunctionError that names it."""
    try:
        return fn(*args)
    except Exception as failure:  # the one broad catch: the user's function may raise anything
        raise UserFunctionError(f"{origin(fn, name)} raised {type(failure).__name__}: {failure}") from failure


class Factory:
    """Stands in the place of the user's class: called with its arguments, it gives a specification."""

    def __init__(
        self, cls: type, make: Callable[..., Any], decorator: Callable[[type], "Factory"], methods: tuple[str, ...]
    ) -> None:
        word = decorator.__name__
        if not isinstance(cls, type):
            raise FlowError(f"dt.{word} takes a class, not {cls!r}; write @dt.{word} above a class")
        missing = [name for name in methods if not callable(getattr(cls, name, None))]
        if missing:
            raise FlowError(
                f"dt.{word}: the class {cls.__module__}.{cls.__qualname__} has no method {missing[0]!r}; "
                f"it needs {', '.join(methods)}"
            )
        functools.update_wrapper(self, cls, updated=())
        self._cls, self._make, self._decorator = cls, make, decorator

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a specification with these arguments for the class."""
        try:
            inspect.signature(self._cls).bind(*args, **kwargs)
        except TypeError as failure:
            raise FlowError(
                f"{self._decorator.__name__} {self._cls.__name__}{inspect.signature(self._cls)}: {failure}; "
                f"it was given {args!r} and {kwargs!r}"
            ) from failure
        return self._make(self, args, kwargs)

    def __reduce__(self) -> Any:
        """Pickle by name: the decorated class's name leads to this object, no longer to the class."""
        found: Any = sys.modules.get(self._cls.__module__)
        for name in self._cls.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is self:
            return self._cls.__qualname__
        return self._decorator, (self._cls,)

    def instance(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make one of the user's objects."""
        return call_user(functools.partial(self._cls, *args, **kwargs), name=f"{self._cls.__name__}(...)")

    @property
    def cls(self) -> type:
        """The user's class."""
        return self._cls


class Own:
    """A specification: which class, with which arguments."""

    def __init__(self, factory: Factory, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._factory, self._args, self._kwargs = factory, args, kwargs

    @property
    def cls(self) -> type:
        """The user's class."""
        return self._factory.cls

    @property
    def _name(self) -> str:
        return self._factory.cls.__name__

    def _instance(self) -> Any:
        return self._factory.instance(self._args, self._kwargs)
