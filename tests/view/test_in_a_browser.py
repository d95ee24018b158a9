"""What people see: a real cluster in a real browser. A producer writes as far as a test says, so that streams stand
where the test wants them; each test waits for what the page shows."""

import contextlib

import numpy as np
import pytest
from playwright.sync_api import Browser

import hoplite_ucx as hoplite
from tests.tools.waiting import HANG
from tests.tools.watched import Watched, WatchedHost
from tests.view.conftest import Looking, ServedView

MIB = 1 << 20
SIZE = 16 * MIB
MARKUP = '<img src=x onerror="document.title=1">\x1b[31m\u202e weights'

pytestmark = pytest.mark.timeout(300)


def flow(sender: WatchedHost, receiver: WatchedHost) -> str:
    return f'.edge[data-from="{sender.node}"][data-to="{receiver.node}"][data-state="flow"]'


def test_an_idle_cluster_shows_its_hosts(looking: Looking, watched: Watched) -> None:
    for host in watched.hosts:
        looking.page.wait_for_selector(f'article.host[data-host="{host.node}"][data-state="up"] .meter')
        looking.page.wait_for_selector(f'#tree .node[data-host="{host.node}"][data-state="idle"]')
    looking.page.wait_for_selector('#op-title:text-is("Nothing moves")')
    assert looking.console == []


def test_a_tree_appears_a_killed_host_turns_red_and_its_receiver_gets_a_new_line(
    looking: Looking, watched: Watched
) -> None:
    page = looking.page
    watched.add(3)
    first = len(watched.hosts) - 3
    source, relay, last = watched.hosts[first:]
    draft = watched.draft(first, SIZE, MARKUP)
    draft.advance(SIZE // 4)
    watched.get(first + 1, draft.ref)
    page.wait_for_selector(flow(source, relay), state="attached")
    getting = watched.get(first + 2, draft.ref)
    page.wait_for_selector(flow(relay, last), state="attached")
    page.wait_for_selector(f'#tree .node[data-host="{last.node}"] .share:text-is("25%")')
    assert page.inner_text("#op-form").startswith("16 MiB")
    relay.kill()
    page.wait_for_selector(f'#tree .node.dead[data-host="{relay.node}"]')
    page.wait_for_selector(f'article.host[data-host="{relay.node}"][data-state="dead"]')
    draft.advance(SIZE // 2)
    page.wait_for_selector(flow(source, last), state="attached")
    page.wait_for_selector(f'#tree .node[data-host="{last.node}"] .share:text-is("50%")')
    page.wait_for_selector('#incidents .dead:has-text("died")')
    page.wait_for_selector('#incidents .again:has-text("continues from")')
    draft.seal()
    getting.join(HANG)
    page.wait_for_selector(f'#tree .node.complete[data-host="{last.node}"]')
    page.wait_for_selector('#op-status:has-text("done in")')
    page.wait_for_selector('#failures details:has-text("is dead: its port refused a connection")')
    assert looking.console == []


def test_a_name_with_markup_is_text(looking: Looking, watched: Watched) -> None:
    """The object of the test before, by name, or another one."""
    ref = hoplite.ref_for(MARKUP)
    host = watched.hosts[0].cluster
    host.put(np.zeros(SIZE // 4, np.float32), ref=ref, timeout=HANG)
    shown = '<img src=x onerror="document.title=1">\\u001b[31m\\u202e weights'
    looking.page.wait_for_function("name => document.getElementById('objects').textContent.includes(name)", arg=shown)
    assert looking.page.title() == "hoplite"
    assert looking.page.query_selector("main img") is None
    assert looking.console == []


def test_a_finished_operation_can_be_replayed(looking: Looking, watched: Watched) -> None:
    page = looking.page
    ref = watched.hosts[0].cluster.put(np.zeros(4 * MIB, np.float32), timeout=HANG)
    watched.hosts[1].cluster.get(ref, timeout=HANG)
    page.wait_for_selector(f'#operations button:has-text("{ref.hex()[:8]}"):has(.dot.done)')
    page.click(f'#operations button:has-text("{ref.hex()[:8]}")')
    page.wait_for_selector(f'#op-title:text-is("{ref.hex()[:8]}")')
    page.eval_on_selector("#seek", "seek => { seek.value = 0; seek.dispatchEvent(new Event('input')); }")
    page.wait_for_function("() => document.getElementById('moment').textContent.startsWith('0 ')")
    page.eval_on_selector("#seek", "seek => { seek.value = 1000; seek.dispatchEvent(new Event('input')); }")
    page.wait_for_selector('#op-status:has-text("done in")')
    page.click("#live")
    page.wait_for_selector('#live[aria-pressed="true"]')
    assert looking.console == []


def test_a_reduction_shows_which_sources_are_late_and_then_its_slots(looking: Looking, watched: Watched) -> None:
    page = looking.page
    hosts = [watched.hosts[index].cluster for index in (0, 1, 2)]
    sources = [hoplite.new_ref() for _ in hosts]
    target = hosts[0].reduce(sources, op="sum", timeout=HANG)
    getting = watched.get(0, target)
    for host, ref in zip(hosts[:2], sources, strict=False):
        host.put(np.ones(MIB, np.float32), ref=ref, timeout=HANG)
    page.wait_for_selector('#sources:has-text("2 of 3 sources are in, 1 is not there yet")')
    assert page.locator("#sources i.chosen").count() == 2
    hosts[2].put(np.ones(MIB, np.float32), ref=sources[2], timeout=HANG)
    getting.join(HANG)
    page.wait_for_selector(f'#operations button:has-text("{target.hex()[:8]}"):has(.dot.done)')
    assert looking.console == []


def test_a_failure_has_its_story(looking: Looking, watched: Watched) -> None:
    page = looking.page
    host = watched.hosts[0].cluster
    one = host.put(np.zeros(MIB, np.float32), timeout=HANG)
    other = host.put(np.zeros(2 * MIB, np.float32), timeout=HANG)
    target = host.reduce([one, other], timeout=HANG)
    with contextlib.suppress(hoplite.InvalidRequestError):
        host.get(target, timeout=HANG)
    box = page.locator(f'#failures details:has-text("{target.hex()[:8]}")')
    box.locator(".story li", has_text="failed").wait_for(state="attached")
    box.locator("summary").click()
    assert "reduce objects of one shape" in box.inner_text()
    assert looking.console == []


def test_without_the_key_the_page_says_what_to_do(browser: Browser, served: ServedView) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(served.view.page.partition("#")[0])
    page.wait_for_selector('#notice:has-text("the key is missing or wrong")')
    assert page.query_selector("article.host") is None
    context.close()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_page(looking: Looking, width: int, scheme: str) -> None:
    page = looking.page
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 1280, "height": 1000})
