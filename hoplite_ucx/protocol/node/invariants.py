"""What must be true of a `NodeState` between any two events; `check_node` asserts all of it.

Most of it says that an index and what it points to agree, because that is how memory leaks and how a segment is
freed under a stream. The cost is linear in what the node holds.
"""

from hoplite_ucx.protocol.ids import NO_SLOT, CallId, StreamId, Version, label, short
from hoplite_ucx.protocol.messages import Place
from hoplite_ucx.protocol.node.calls import Calls, PendingPut, PendingWait
from hoplite_ucx.protocol.node.fetching import Fetching
from hoplite_ucx.protocol.node.incoming import Fetch
from hoplite_ucx.protocol.node.machine import NodeState
from hoplite_ucx.protocol.node.memory import Holding, Input, Memory, Phase
from hoplite_ucx.protocol.node.receiving import Receiving
from hoplite_ucx.protocol.node.reducing import Slot
from hoplite_ucx.protocol.node.serving import Outgoing, Serving, Turn


def check_node(state: NodeState) -> None:
    name, memory = label(state.node), state.memory
    _check_room(name, memory)
    _check_index(name, memory)
    _check_holdings(name, state)
    _check_pins(name, memory)
    _check_serving(name, state.serving, memory)
    _check_streams(name, state)
    for (ref, into), fetch in state.fetching.fetches.items():
        assert (fetch.ref, fetch.into) == (ref, into), f"{name}: fetch of {short(ref)} is filed wrongly"
        _check_fetch(name, fetch, state)
        if into:
            _check_feeding(name, fetch, state)
        else:
            _check_getting(name, fetch)
    for ref in state.fetching.assembling.assemblies:
        _check_assembly(name, ref, state)
    for ref, slot in state.reducing.slots.items():
        _check_slot(name, ref, slot, state)
    _check_getters(name, state.fetching)
    for call, put in state.calls.puts.items():
        _check_put(name, call, put, memory)
    _check_watchers(name, state.calls)
    _check_polls(name, state)
    _check_requests(name, state)
    _check_timers(name, state)


def _what(name: str, holding: Holding) -> str:
    return f"{name}: {holding.version or short(holding.ref)} (segment {holding.segment})"


# --- memory -----------------------------------------------------------------------------------------------------


def _check_room(name: str, memory: Memory) -> None:
    used = sum([h.size for h in memory.segments.values() if h.parent is None])
    assert memory.used == used, f"{name}: {memory.used} bytes are accounted for, segments have {used}"
    assert used <= memory.limit, f"{name}: {used} bytes are over the limit of {memory.limit}"


def _check_index(name: str, memory: Memory) -> None:
    for version, holding in memory.holdings.items():
        what = f"{name}: {version}"
        assert holding.version == version, f"{what} is filed for {holding.version}"
        assert not holding.doomed, f"{what} is doomed and yet held"
        assert memory.segments.get(holding.segment) is holding, f"{what} has no segment"
        versions = memory._by_ref.get(version.ref)
        assert versions is not None, f"{what} is not filed under its ref"
        assert versions.get(version) is holding, f"{what} is not filed under its ref"
    filed = sum([len(versions) for versions in memory._by_ref.values()])
    assert filed == len(memory.holdings), f"{name}: {filed} versions are filed by ref, {len(memory.holdings)} are held"
    assert all(memory._by_ref.values()), f"{name}: a ref is filed without versions"


def _check_holdings(name: str, state: NodeState) -> None:
    """What keeps a segment is really there, and every segment is kept by something."""
    memory, joined = state.memory, state._context.joined
    serves = _count_serves(state.serving)
    uses = _count_uses(state)
    windows = _count_windows(memory)
    owners = _owners(state)
    for segment, holding in memory.segments.items():
        phase, receive = holding.phase, holding.receive
        assert holding.segment == segment, f"{_what(name, holding)} is filed as segment {segment}"
        assert 0 <= holding.start <= holding.watermark, f"{_what(name, holding)} is at {holding.watermark}"
        assert holding.watermark <= holding.size, f"{_what(name, holding)} is at {holding.watermark}"
        assert holding.serves == serves.get(segment, 0), f"{_what(name, holding)} miscounts who reads it"
        assert holding.uses == uses.get(segment, 0), f"{_what(name, holding)} miscounts the slots that combine it"
        assert holding.windows == windows.get(segment, 0), f"{_what(name, holding)} miscounts its windows"
        if holding.parent is not None:
            kept = memory.segments.get(holding.parent.segment) is holding.parent
            assert kept, f"{_what(name, holding)} is a window of what was freed"
        sinks: list[Holding | Input] = [holding, *holding.inputs]
        for sink in sinks:
            _check_sink(name, sink, holding, state.receiving)
        if phase is Phase.COMPLETE:
            assert holding.watermark == holding.size, f"{_what(name, holding)} is complete at {holding.watermark}"
            assert not holding.start, f"{_what(name, holding)} is complete without its first {holding.start} bytes"
            assert receive is None, f"{_what(name, holding)} is complete and yet receives"
            assert not holding.writing, f"{_what(name, holding)} is complete and yet written"
        if holding.doomed:
            assert holding.in_use(), f"{_what(name, holding)} is doomed and unused, and yet kept"
            if holding.version is not None:
                waited_for = memory._asked.get(holding.version) is holding
                assert not waited_for, f"{_what(name, holding)} is doomed, and memory waits for its eviction"
                assert memory.holdings.get(holding.version) is not holding, f"{_what(name, holding)} is doomed but held"
        elif holding.version is not None:
            assert holding.version in memory.holdings, f"{_what(name, holding)} is not held"
        if phase is not Phase.COMPLETE and not holding.doomed:
            assert segment in owners, f"{_what(name, holding)} is {phase.value} for nobody"
            assert owners[segment] is phase, f"{_what(name, holding)} is {phase.value}, its owner disagrees"
        if holding.version in memory._asked:
            assert phase is Phase.COMPLETE, f"{_what(name, holding)} is evicted while {phase.value}"
            assert holding.sealed, f"{_what(name, holding)} is evicted and not decided"
            assert joined, f"{_what(name, holding)} waits for an answer that cannot come"
        if holding.kept is not None:
            assert holding in memory._refused, f"{_what(name, holding)} is kept for good"


def _check_sink(name: str, sink: Holding | Input, holding: Holding, receiving: Receiving) -> None:
    """What streams into a segment, for the store or as a part of a slot."""
    assert sink.owner is holding, f"{_what(name, holding)} has a part that is another's"
    assert 0 <= sink.watermark <= sink.size, f"{_what(name, holding)} has a part at {sink.watermark} of {sink.size}"
    if sink.receive is not None:
        incoming = receiving.streams.get(sink.receive)
        assert incoming is not None, f"{_what(name, holding)} receives {sink.receive}, which is not open"
        assert incoming.sink is sink, f"{_what(name, holding)} receives {sink.receive}, which fills another"


def _count_uses(state: NodeState) -> dict[int, int]:
    uses: dict[int, int] = {}
    for slot in state.reducing.slots.values():
        for holding in slot.used:
            uses[holding.segment] = uses.get(holding.segment, 0) + 1
    for assembly in state.fetching.assembling.assemblies.values():
        for made in assembly.made.values():
            uses[made.segment] = uses.get(made.segment, 0) + 1
    for inherited in state.inheritance.uses():
        uses[inherited.segment] = uses.get(inherited.segment, 0) + 1
    return uses


def _count_windows(memory: Memory) -> dict[int, int]:
    windows: dict[int, int] = {}
    for holding in memory.segments.values():
        if holding.parent is not None:
            windows[holding.parent.segment] = windows.get(holding.parent.segment, 0) + 1
    return windows


def _count_serves(serving: Serving) -> dict[int, int]:
    serves: dict[int, int] = {}
    for outgoing in serving.streams.values():
        if outgoing.holding is not None:
            segment = outgoing.holding.segment
            serves[segment] = serves.get(segment, 0) + 1
    return serves


def _owners(state: NodeState) -> dict[int, Phase]:
    """The segments of fetches, of slots and of puts."""
    fetches = state.fetching.fetches.values()
    owners = {fetch.sink.segment: Phase.RECEIVING for fetch in fetches if isinstance(fetch.sink, Holding)}
    for slot in state.reducing.slots.values():
        if slot.holding is not None:
            owners[slot.holding.segment] = Phase.REDUCING
    for assembly in state.fetching.assembling.assemblies.values():
        owners |= dict.fromkeys(assembly.copying, Phase.RECEIVING)
    for put in state.calls.puts.values():
        if put.holding is not None:
            owners[put.holding.segment] = Phase.PRODUCING
    return owners


def _check_pins(name: str, memory: Memory) -> None:
    pins = sum([len(h.pins) for h in memory.segments.values()])
    assert pins == len(memory.pinned), f"{name}: {pins} pins on segments, {len(memory.pinned)} by call"
    for call, holding in memory.pinned.items():
        assert call in holding.pins, f"{_what(name, holding)} does not know that call {call} pins it"
        assert holding.segment in memory.segments, f"{_what(name, holding)} was freed under call {call}"
        assert holding.phase is Phase.COMPLETE, f"{_what(name, holding)} was given out while {holding.phase.value}"
        assert holding.sealed, f"{_what(name, holding)} was given out and not decided"


def _check_requests(name: str, state: NodeState) -> None:
    """Every request for room belongs to something, and waits for something that will come."""
    memory = state.memory
    if not memory._requests:
        return
    owned = [f.request for f in state.fetching.fetches.values()]
    owned += [p.request for p in state.calls.puts.values()]
    owned += [s.request for s in state.reducing.slots.values()]
    for request in memory._requests:
        assert request in owned, f"{name}: nobody waits for {request.size} bytes that were asked for"
        if memory._asked:
            continue  # the first waits for an eviction, and the others wait their turn
        assert memory.used + request.size > memory.limit, f"{name}: {request.size} bytes fit and were not granted"
        assert request.patient or not state._context.joined, f"{name}: an impatient request waits for nothing"


# --- streams ----------------------------------------------------------------------------------------------------


def _check_serving(name: str, serving: Serving, memory: Memory) -> None:
    queues = 0
    for version, queue in serving._by_version.items():
        assert queue, f"{name}: an empty queue is kept for {version}"
        queues += len(queue)
    assert queues == len(serving.streams), f"{name}: {queues} streams are queued, {len(serving.streams)} are open"
    counted = sum([not o.request.for_slot for o in serving.streams.values()])
    assert counted <= serving._limit, f"{name}: {counted} outgoing streams are over the limit of {serving._limit}"
    for stream, outgoing in serving.streams.items():
        _check_outgoing(name, stream, outgoing, serving, memory)


def _check_outgoing(name: str, stream: StreamId, outgoing: Outgoing, serving: Serving, memory: Memory) -> None:
    request, holding = outgoing.request, outgoing.holding
    assert request.stream == stream, f"{name}: {request.stream} is filed as {stream}"
    assert outgoing in serving._by_version.get(request.version, ()), f"{name}: {stream} is in no queue"
    assert (outgoing.turn is Turn.PARKED) == (holding is None), f"{name}: {stream} is {outgoing.turn.value}"
    if holding is None:
        assert ("park", stream) in serving._context.timers, f"{name}: {stream} is parked for good"
    else:
        right = holding.version == request.version or outgoing.turn is Turn.CLOSING
        assert right, f"{name}: {stream} asked for {request.version}, gets {holding.version}"
        assert memory.segments.get(holding.segment) is holding, f"{name}: {stream} reads a freed segment"
        inside = holding.start <= outgoing.position <= holding.size or outgoing.turn is Turn.CLOSING
        assert inside, f"{name}: {stream} is at {outgoing.position} of {holding.start} to {holding.size}"


def _check_streams(name: str, state: NodeState) -> None:
    """An open stream fills its fetch's sink, or is closing because its fetch has let go of it."""
    for stream, incoming in state.receiving.streams.items():
        fetch, sink = incoming.fetch, incoming.sink
        assert incoming.stream == stream, f"{name}: {incoming.stream} is filed as {stream}"
        assert sink.receive == stream, f"{name}: {stream} fills segment {sink.segment} unknown to it"
        assert sink.version == incoming.placement.version, f"{name}: {stream} mixes versions"
        if fetch.incoming is incoming and state.fetching.fetches.get((fetch.ref, fetch.into)) is fetch:
            assert fetch.sink is sink, f"{name}: {stream} fills what its fetch does not hold"
        else:
            assert incoming.closing, f"{name}: {stream} runs for nobody"
            over = sink.doomed or sink.watermark == sink.size
            assert over, f"{name}: {stream} was let go of, but not what it fills"


def _check_fetch(name: str, fetch: Fetch, state: NodeState) -> None:
    what = f"{name}: fetch of {short(fetch.ref)}"
    placement, sink, incoming, request = fetch.placement, fetch.sink, fetch.incoming, fetch.request
    if incoming is not None:
        assert state.receiving.streams.get(incoming.stream) is incoming, f"{what}: its stream is not open"
    if sink is not None:
        assert not sink.doomed, f"{what}: what it fills is doomed"
        assert request is None, f"{what}: asks for memory that it has"
        if placement is not None:
            assert sink.version == placement.version, f"{what}: placed for another version than it holds"
    if placement is not None:
        assert placement.number == fetch.number, f"{what}: placed by {placement.number}, the newest is {fetch.number}"
        if isinstance(placement, Place):
            assert placement.into == fetch.into, f"{what}: placed for another slot"
        assembled = fetch.ref in state.fetching.assembling.assemblies or (fetch.whole is not None and sink is None)
        runs = incoming is not None or request is not None or assembled
        assert runs, f"{what}: placed, but nothing runs"
    if request is not None:
        assert request in state.memory._requests, f"{what}: its request for memory was lost"
        assert placement is not None, f"{what}: asks for memory without a placement"
    if fetch.halt is not None:
        assert incoming is not None, f"{what}: halted, and the report is missing"
        assert incoming.closing, f"{what}: halted, and yet it runs"
    if fetch.hungry_for is not None:
        assert placement is None, f"{what}: placed, and yet it waits for memory"
        assert sink is None, f"{what}: holds memory, and yet it waits for it"
        assert fetch.getters, f"{what}: waits for memory for nobody"
    alive = fetch.getters or fetch.whole or placement or sink or incoming or not state._context.joined
    assert alive, f"{what}: nobody waits, nothing runs"


def _check_getting(name: str, fetch: Fetch) -> None:
    """A fetch for the store: it receives, or has received all of a version that is not decided."""
    what, sink = f"{name}: fetch of {short(fetch.ref)}", fetch.sink
    assert not isinstance(sink, Input), f"{what}: for the store, and fills a slot"
    if sink is None or sink.phase is Phase.RECEIVING:
        return
    assert sink.phase is Phase.COMPLETE, f"{what}: its holding is {sink.phase.value}"
    assert not sink.sealed, f"{what}: complete and decided, and yet it goes on"
    assert fetch.placement is None, f"{what}: complete, and yet it is placed"
    assert fetch.incoming is None, f"{what}: complete, and yet it receives"


def _check_assembly(name: str, ref: bytes, state: NodeState) -> None:
    """An assembly has a fetch and, once it has memory, a window for every stripe, which a fetch fills."""
    what, assembly = f"{name}: {short(ref)} in stripes", state.fetching.assembling.assemblies[ref]
    fetch = state.fetching.fetches.get((ref, NO_SLOT))
    assert fetch is not None, f"{what}: nobody fetches it"
    assert fetch.placement is assembly.message, f"{what}: placed in another way"
    assert fetch.incoming is None, f"{what}: something streams over it"
    assert assembly.left, f"{what}: all of it has come, and it is not complete"
    copied = {copying.ref for copying in assembly.copying.values()}
    for stripe in assembly.message.stripes:
        piece = state.fetching.fetches.get((stripe.version.ref, NO_SLOT))
        if fetch.sink is None:
            continue
        if stripe.version.ref not in assembly.left or stripe.version.ref in copied:
            assert piece is None or piece.whole != ref, f"{what}: {stripe.version} has come, and is fetched"
            continue
        assert piece is not None, f"{what}: nobody fetches {stripe.version}"
        window = piece.sink
        assert piece.whole == ref, f"{what}: {stripe.version} is fetched for another"
        assert isinstance(window, Holding), f"{what}: {stripe.version} has no window"
        assert window.parent is fetch.sink, f"{what}: {stripe.version} fills another's window"
        assert window.version == stripe.version, f"{what}: {stripe.version} comes as {window.version}"
        assert window.size == stripe.size, f"{what}: {stripe.version} has another size"


def _check_feeding(name: str, fetch: Fetch, state: NodeState) -> None:
    """A fetch for a slot has the slot's input, and nothing of a get."""
    what, sink = f"{name}: part {short(fetch.ref)} of slot {short(fetch.into)}", fetch.sink
    slot = state.reducing.slots.get(fetch.into)
    assert slot is not None, f"{what}: there is no such slot"
    assert slot.holding is not None, f"{what}: the slot has no memory"
    assert isinstance(sink, Input), f"{what}: has no input"
    assert sink in slot.holding.inputs, f"{what}: its input is another slot's"
    assert not fetch.getters, f"{what}: a get waits for it"
    assert fetch.request is None, f"{what}: asks for memory"
    assert fetch.hungry_for is None, f"{what}: waits for memory"


def _check_slot(name: str, ref: bytes, slot: Slot, state: NodeState) -> None:
    what, version, holding = f"{name}: slot {slot.bind.version}", slot.bind.version, slot.holding
    assert version.ref == ref, f"{what} is filed as {short(ref)}"
    for used in slot.used:
        assert state.memory.segments.get(used.segment) is used, f"{what} combines a freed segment"
        assert _source_of(used) in slot.bind.parts, f"{what} combines {used.version}, no part of it"
    if holding is None:
        assert slot.request is not None, f"{what} has no memory and asks for none"
        assert slot.request in state.memory._requests, f"{what}: its request for memory was lost"
        assert not slot.used, f"{what} has no memory and yet combines"
        return
    assert slot.request is None, f"{what} asks for memory that it has"
    assert state.memory.get(version) is holding, f"{what}: its holding is not held"
    assert not holding.sealed, f"{what}: decided, and yet it goes on"
    assert holding.phase in (Phase.REDUCING, Phase.COMPLETE), f"{what}: its holding is {holding.phase.value}"
    assert holding.receive is None, f"{what}: something streams over it"
    parts = [_source_of(used) for used in slot.used] + [sink.version for sink in holding.inputs]
    assert sorted(slot.bind.parts) == sorted(filter(None, parts)), f"{what}: its parts are not what was bound"
    for sink in holding.inputs:
        assert slot.bind.parts[sink.part] == sink.version, f"{what}: {sink.version} is not part {sink.part}"
        assert sink.size == holding.size, f"{what}: {sink.version} has another size"
        fetch = state.fetching.fetches.get((sink.version.ref, ref))
        fed = fetch is not None and fetch.sink is sink
        assert fed or sink.watermark == sink.size, f"{what}: nobody fetches {sink.version}"
        if holding.phase is Phase.COMPLETE:
            assert sink.watermark == sink.size, f"{what}: complete, with {sink.version} at {sink.watermark}"


def _source_of(used: Holding) -> Version | None:
    """What a slot combines; a piece of a source has no version of its own."""
    return used.parent.version if used.version is None and used.parent is not None else used.version


def _check_getters(name: str, fetching: Fetching) -> None:
    listed = sum([len(fetch.getters) for fetch in fetching.fetches.values()])
    assert listed == len(fetching.getters), f"{name}: fetches have {listed} gets, {len(fetching.getters)} are known"
    for call, ref in fetching.getters.items():
        fetch = fetching.fetches.get((ref, NO_SLOT))
        assert fetch is not None, f"{name}: get {call} waits for {short(ref)}, which nobody fetches"
        assert call in fetch.getters, f"{name}: get {call} is unknown to the fetch of {short(ref)}"


# --- calls ------------------------------------------------------------------------------------------------------


def _check_put(name: str, call: CallId, put: PendingPut, memory: Memory) -> None:
    what, holding = f"{name}: put {call} of {short(put.call.ref)}", put.holding
    assert put.call.call == call, f"{what} is filed under another call"
    if holding is None:
        assert put.request is not None, f"{what} has no memory and asks for none"
        assert put.request in memory._requests, f"{what}: its request for memory was lost"
        return
    assert put.request is None, f"{what} asks for memory that it has"
    assert memory.segments.get(holding.segment) is holding, f"{what}: its segment was freed"
    assert holding.phase is Phase.PRODUCING, f"{what}: its holding is {holding.phase.value}"
    assert holding.doomed == put.answered, f"{what}: answered {put.answered}, doomed {holding.doomed}"
    if put.answered:
        assert holding.writing, f"{what} is over and nothing writes, and yet it is kept"
    accepted: Version | None = None
    if put.accepted is not None and not put.accepted.existing:
        accepted = put.accepted.version
    assert holding.version == accepted, f"{what}: accepted as {accepted}, held as {holding.version}"


def _check_watchers(name: str, calls: Calls) -> None:
    watching = 0
    for call, wait in calls.waits.items():
        watching += _check_wait(name, call, wait, calls)
    listed = sum([len(watchers) for watchers in calls._watchers.values()])
    assert listed == watching, f"{name}: {listed} watchers are listed, waits have {watching}"
    assert all(calls._watchers.values()), f"{name}: a ref is watched by nobody"


def _check_wait(name: str, call: CallId, wait: PendingWait, calls: Calls) -> int:
    ready = len(wait.ready)
    assert ready < wait.call.count, f"{name}: wait {call} has what it waits for, and no answer"
    watching = 0
    for ref in wait.call.refs:
        if ref not in wait.ready:
            watching += 1
            assert call in calls._watchers.get(ref, ()), f"{name}: wait {call} does not watch {short(ref)}"
    return watching


def _check_polls(name: str, state: NodeState) -> None:
    """Every question belongs to an open call, and will not wait for ever."""
    for call in state._context.polls:
        live = call in state.fetching.getters or call in state.calls.waits or call in state.calls.asks
        assert live, f"{name}: call {call} is over, not its question"
        assert ("call", call) in state._context.timers, f"{name}: call {call} waits for an answer for ever"


def _check_timers(name: str, state: NodeState) -> None:
    calls, streams = state.calls, state.serving.streams
    for key in state._context.timers:
        match key:
            case ("call", int() as call):
                put = calls.puts.get(call)
                live = (put is not None and not put.answered) or call in state.fetching.getters
                simple = any(call in pending for pending in (calls.waits, *calls.simple()))
                assert live or simple, f"{name}: call {call} is over, not its timer"
            case ("park", StreamId() as stream):
                assert stream in streams, f"{name}: {stream} is over, not its timer"
                assert streams[stream].turn is Turn.PARKED, f"{name}: {stream} is not parked any more, but will expire"
