"""The head actor by itself, without Ray: what it does when its owner is slow, or when it dies."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

pytest.importorskip("ray")

from hoplite_ucx.ray.head import Head, Supply
from hoplite_ucx.ray.terms import Terms

TERMS = Terms("198.18.0.1:7777")


async def soon(work: Coroutine[Any, Any, Any]) -> Any:
    """Begun, and as far as it comes without anybody else."""
    begun = asyncio.ensure_future(work)
    await settled()
    return begun


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def a_version_is_kept_before_its_publisher_hears_of_it() -> None:
    head = Head()
    await head.supply(Supply(TERMS, {}))
    publishing = await soon(head.publish("policy", ["ref"]))
    assert await head.newest("policy", 0, 0.0) == (1, ["ref"])  # receivers have it at once
    assert not publishing.done()
    assert (await head.wishes()).published == {"policy": (1, ["ref"])}
    assert (await head.wishes()).published == {"policy": (1, ["ref"])}  # the first answer may not have arrived
    assert not publishing.done()
    await head.kept({"policy": 1})
    assert await publishing == 1
    assert not (await head.wishes()).published


async def the_next_head_goes_on_counting() -> None:
    head = Head()
    publishing = await soon(head.publish("policy", ["new"]))  # before the owner has told it anything
    assert await head.newest("policy", 0, 0.0) is None
    await head.supply(Supply(TERMS, {}, published={"policy": (7, ["old"])}))
    await settled()
    assert (await head.wishes()).published == {"policy": (8, ["new"])}
    await head.kept({"policy": 8})
    assert await publishing == 8


@pytest.mark.parametrize("story", [a_version_is_kept_before_its_publisher_hears_of_it, the_next_head_goes_on_counting])
def test_published(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))
