from __future__ import annotations

import asyncio
import inspect
import pickle

import pytest

from verl_otel.instrumentation import patch


class Base:
    def inherited(self) -> int:
        return 1


class Thing(Base):
    def add(self, x: int) -> int:
        return x + 1

    async def slow(self, x: int) -> int:
        return x * 2

    @classmethod
    def make(cls, x: int) -> tuple[type, int]:
        return cls, x


Thing.add.marked = "by a decorator"  # type: ignore[attr-defined]
seen: list[tuple[object, tuple[object, ...]]] = []


def hook(wrapped, instance, args, kwargs):
    seen.append((instance, args))
    return wrapped(*args, **kwargs)


for name in ("add", "make"):
    patch.wrap(Thing, name, hook)


async def async_hook(wrapped, instance, args, kwargs):
    return 1 + await wrapped(*args, **kwargs)


patch.wrap(Thing, "slow", async_hook)


def test_a_hooked_method_is_found_again_by_its_name_so_that_ray_can_pickle_it() -> None:
    assert pickle.loads(pickle.dumps(Thing.add)) is Thing.add
    assert Thing.add.marked == "by a decorator"  # type: ignore[attr-defined]
    assert list(inspect.signature(Thing.add).parameters) == ["self", "x"]


def test_hooks_see_the_instance_and_the_arguments() -> None:
    thing = Thing()
    assert thing.add(2) == 3
    assert seen[-1] == (thing, (2,))
    assert Thing.make(5) == (Thing, 5)


def test_coroutine_functions_stay_coroutine_functions() -> None:
    assert inspect.iscoroutinefunction(Thing.slow)
    assert asyncio.run(Thing().slow(3)) == 7


def test_only_what_a_class_itself_defines_is_hooked() -> None:
    with pytest.raises(AttributeError):
        patch.wrap(Thing, "inherited", hook)
