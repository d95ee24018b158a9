"""A model of striped trees: what n hosts take for an object that travels as m stripes, each along its own tree.

    python docs/design/striped_trees.py 1000 --stripes 8 --kill 0.01

It is not the protocol: there are no messages, only the decisions of the plan in striped-trees.md and the bytes. Every
network card is full duplex and sends and receives one chunk after the other. A chunk takes a place on the sender's card
and on the receiver's, the latency, and the hand-over delay, and then its receiver may forward it. A host sends its
stripes' chunks to its children in turns. Times are given as multiples of S/B, each from when the host asked.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import time
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Host:
    asked: float = 0.0
    budget: int = 0
    """Streams that its card can still serve at a stripe's rate."""
    children: list[list[int]] = field(default_factory=list)
    """[child, stripe, chunks sent]."""
    have: list[int] = field(default_factory=list)
    """Chunks of each stripe that it may forward."""
    parents: list[int] = field(default_factory=list)
    turn: int = 0
    up_free: float = 0.0
    down_free: float = 0.0
    awake: bool = False
    left: int = 0
    done: float = 0.0
    alive: bool = True


class Model:
    def __init__(self, args: argparse.Namespace) -> None:
        self.n, self.m, self.fan = args.hosts, args.stripes, args.fan or args.stripes
        self.wire = args.chunk / args.rate
        self.delay = args.latency + args.handover
        self.limit = args.size / args.rate
        self.chunks = -(-args.size // (args.chunk * self.m))  # of a stripe
        self.hosts = [Host(budget=self.m, have=[0] * self.m, parents=[-1] * self.m) for _ in range(self.n)]
        self.hosts[0].have = [self.chunks] * self.m
        self.events: list[tuple[float, int, int, int, int]] = []  # when, tie, kind, a, b
        self.ties = itertools.count()
        self.room = [0]  # hosts that can serve more
        self.depth = [[0] * self.m for _ in range(self.n)]
        self.rounds = self.moved = 0
        self.late = False
        """Whether anybody gets children after the start."""

    # --- decisions -------------------------------------------------------------------------------------------------

    def lay(self, crowd: list[int], now: float) -> None:
        """Place all that ask together. In each stripe, one host in `fan` is interior, in the order of a tree. Its root
        hangs below whoever has room left, of those who were there before, and keeps room for the next crowd. A leaf
        that finds no place below an interior host goes to anybody in the crowd that has room: it has no children of
        that stripe, so nothing can form a ring. A few hosts are a chain: each gets all stripes from the one before."""
        if 1 < len(crowd) < 2 * self.m:
            for host in crowd:
                self.lay([host], now)
            return
        self.rounds += 1
        leaves: list[tuple[int, int]] = []
        roots: list[int] = []
        for stripe in range(self.m):
            step = min(self.fan, len(crowd))
            interior = crowd[stripe % step :: step]
            turn = stripe // step % len(interior)
            interior = interior[turn:] + interior[:turn]  # another root for each stripe
            chosen = set(interior)
            root = interior[0]
            self.feed(min(self.room, key=lambda each: self.depth[each][stripe]), root, stripe, now)
            self.room = [host for host in self.room if self.hosts[host].budget > 0]
            self.hosts[root].budget -= 1  # kept for the next crowd
            roots.append(root)
            places = deque([root])
            # Room is left at the last ones: these are placed first, since only who gets a stripe can forward it.
            for host in (*interior[1:], *(host for host in reversed(crowd) if host not in chosen)):
                while places and (self.hosts[places[0]].budget <= 0 or self.served(places[0], stripe) >= self.fan):
                    places.popleft()
                if not places:
                    leaves.append((host, stripe))
                    continue
                self.feed(places[0], host, stripe, now)
                if host in chosen:
                    places.append(host)
        for root in roots:
            self.hosts[root].budget += 1
        room = dict.fromkeys(host for host in crowd if self.hosts[host].budget > 0)
        for host, stripe in sorted(leaves, key=lambda leaf: leaf[0] not in room):  # who has room can then give it
            parent = min(
                (each for each in room if self.hosts[each].parents[stripe] >= 0 and each != host),
                key=lambda each: (each in roots, self.depth[each][stripe]),
                default=roots[stripe],
            )
            self.feed(parent, host, stripe, now)
            if self.hosts[parent].budget <= 0:
                room.pop(parent, None)
        self.room += room

    def served(self, host: int, stripe: int) -> int:
        return sum(child[1] == stripe for child in self.hosts[host].children)

    def feed(self, parent: int, child: int, stripe: int, now: float, sent: int = 0) -> None:
        self.hosts[parent].children.append([child, stripe, sent])
        self.hosts[parent].budget -= 1
        self.hosts[child].parents[stripe] = parent
        self.depth[child][stripe] = self.depth[parent][stripe] + 1
        self.wake(parent, now)

    def kill(self, dead: list[int], _: float) -> None:
        for host in dead:
            self.hosts[host].alive = False

    def repair(self, dead: list[int], now: float) -> None:
        """Each orphan of a stripe goes on where it is, at an interior host of that stripe with the fewest children that
        does not get the stripe through it."""
        orphans = []
        for host in dead:
            orphans += [tuple(child) for child in self.hosts[host].children if self.hosts[child[0]].alive]
            for parent in self.hosts[host].parents:
                if parent >= 0:
                    children = self.hosts[parent].children
                    children[:] = [child for child in children if child[0] != host]
        interior: list[list[int]] = [[] for _ in range(self.m)]
        for number, living in enumerate(self.hosts):
            if living.alive:
                for stripe in {child[1] for child in living.children}:
                    interior[stripe].append(number)
        for child, stripe, sent in orphans:
            parent = min(
                (each for each in interior[stripe] if not self.through(each, child, stripe)),
                key=lambda each: (len(self.hosts[each].children), self.depth[each][stripe]),
            )
            self.feed(parent, child, stripe, now, sent)
            self.moved += 1

    def through(self, host: int, above: int, stripe: int) -> bool:
        while host > 0 and host != above:
            if not self.hosts[host].alive:
                return True
            host = self.hosts[host].parents[stripe]
        return host == above

    # --- bytes -----------------------------------------------------------------------------------------------------

    def wake(self, number: int, now: float) -> None:
        host = self.hosts[number]
        if not host.awake:
            host.awake = True
            heapq.heappush(self.events, (max(now, host.up_free), next(self.ties), 0, number, 0))

    def send(self, number: int, now: float) -> None:
        """The next chunk of the next child that lacks one."""
        host = self.hosts[number]
        host.awake = False
        children, have = host.children, host.have
        if not host.alive or not children:
            return
        count = len(children)
        for offset in range(count):
            place = (host.turn + offset) % count
            entry = children[place]
            child, stripe, sent = entry
            if sent < have[stripe]:
                break
        else:
            return
        host.turn = place + 1
        entry[2] = sent + 1
        receiver = self.hosts[child]
        host.up_free = now + self.wire
        receiver.down_free = max(now, receiver.down_free) + self.wire
        there = receiver.down_free + self.delay
        receiver.left -= 1
        if not receiver.left:
            receiver.done = there
        if self.late or any(each[1] == stripe for each in receiver.children):  # or it may get children later
            heapq.heappush(self.events, (there, next(self.ties), 1, child, stripe))
        host.awake = True
        heapq.heappush(self.events, (host.up_free, next(self.ties), 0, number, 0))

    def run(self, crowds: list[tuple[float, list[int]]], dead: list[int], killed_at: float, noticed: float) -> None:
        self.late = len(crowds) > 1 or bool(dead)
        for host in self.hosts[1:]:
            host.left = self.chunks * self.m
        jobs = [(at, 2, crowd) for at, crowd in crowds]
        if dead:
            jobs += [(killed_at, 3, dead), (killed_at + noticed, 4, dead)]
        work = [job for _, _, job in jobs]
        for index, (at, kind, _) in enumerate(jobs):
            heapq.heappush(self.events, (at, next(self.ties), kind, index, 0))
        events = self.events
        while events:
            now, _, kind, a, b = heapq.heappop(events)
            if kind == 0:
                self.send(a, now)
            elif kind == 1:
                host = self.hosts[a]
                host.have[b] += 1
                if not host.awake:
                    self.wake(a, now)
            else:
                (self.lay, self.kill, self.repair)[kind - 2](work[a], now)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", type=int)
    parser.add_argument("--stripes", type=int, default=8)
    parser.add_argument("--fan", type=int, help="children of an interior host; as many as stripes by default")
    parser.add_argument("--chunk", type=int, default=32 << 10)
    parser.add_argument("--size", type=int, default=64 << 20)
    parser.add_argument("--rate", type=float, default=125e6)
    parser.add_argument("--latency", type=float, default=100e-6)
    parser.add_argument("--handover", type=float, default=150e-6)
    parser.add_argument("--every", type=float, default=0.0, help="hosts ask one by one, so many seconds apart")
    parser.add_argument("--cost", type=float, default=0.0, help="what the directory takes to place a host, in seconds")
    parser.add_argument(
        "--window", type=float, default=5e-3, help="how long it lets requests come before it places them"
    )
    parser.add_argument("--kill", type=float, default=0.0, help="this part of the hosts, at half time")
    parser.add_argument("--noticed", type=float, default=1e-3, help="after so many seconds their children move")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began = time.process_time()
    model = Model(args)
    crowds: list[tuple[float, list[int]]] = []
    ready = 0.0
    for number in range(1, args.hosts):
        model.hosts[number].asked = asked = args.every * (number - 1)
        ready = max(ready, asked) + args.cost
        if not crowds or ready > crowds[-1][0]:
            crowds.append((ready + (args.window if args.cost or args.every else 0.0), []))
        crowds[-1][1].append(number)
    draw = random.Random(args.seed)
    dead = draw.sample(range(1, args.hosts), round(args.kill * args.hosts))
    model.run(crowds, dead, model.limit / 2, args.noticed)
    times = [(host.done - host.asked) / model.limit for host in model.hosts[1:] if host.alive]
    unfinished = sum(1 for host in model.hosts[1:] if host.alive and host.left)
    deepest = max(max(each) for each in model.depth)
    print(  # noqa: T201
        f"{args.hosts} hosts, {args.stripes} stripes, chunks of {args.chunk >> 10} KiB: {max(times):.3f} x S/B, "
        f"median {sorted(times)[len(times) // 2]:.3f}; depth {deepest}, {model.rounds} crowds, {len(dead)} killed, "
        f"{model.moved} streams moved, {unfinished} unfinished; {time.process_time() - began:.1f} s"
    )


if __name__ == "__main__":
    main()
