"""Replacing a function by one that calls a hook, in a way that Ray can pickle.

wrapt's proxies do not survive here: Ray pickles an actor class with its methods, and cloudpickle takes a method by
reference only if looking it up by its name gives the same object. So a hooked method is a plain function with the
original's name, attributes (verl's ``@register`` leaves some) and kind (coroutine functions stay so).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

# (wrapped, instance, args, kwargs) -> result, as in wrapt
Hook = Callable[[Any, Any, Any, Any], Any]


def wrap(owner: ModuleType | type, attribute: str, hook: Hook) -> None:
    """Replace ``owner.attribute`` (dotted below ``owner``) by a function that calls ``hook``.

    Raises:
        AttributeError: there is no such attribute.
    """
    *parents, name = attribute.split(".")
    holder: Any = owner
    for parent in parents:
        holder = getattr(holder, parent)
    if not isinstance(holder, type):
        setattr(holder, name, _function(getattr(holder, name), hook))
        return
    # Only what the class itself defines: a hook on a base class must not be put on a subclass a second time.
    try:
        defined = vars(holder)[name]
    except KeyError:
        raise AttributeError(f"{holder.__qualname__} defines no {name}") from None
    if isinstance(defined, classmethod):
        setattr(holder, name, classmethod(_method(defined.__func__, hook)))
    else:
        setattr(holder, name, _method(defined, hook))


def _function(original: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def hooked_async(*args: Any, **kwargs: Any) -> Any:
            return await hook(original, None, args, kwargs)

        return hooked_async

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return hook(original, None, args, kwargs)

    return hooked


def _method(original: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def hooked_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await hook(functools.partial(original, self), self, args, kwargs)

        return hooked_async

    @functools.wraps(original)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        return hook(functools.partial(original, self), self, args, kwargs)

    return hooked
