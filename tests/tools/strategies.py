"""Hypothesis strategies for messages, read off the types themselves: what a field's `Meta` allows, and its edges.

`known` gives strategies for single types or field names, so that random messages speak of things that exist.
"""

import typing
from collections.abc import Mapping

from hypothesis import strategies as st
from msgspec import inspect

from hoplite_ucx.protocol.ids import Version
from hoplite_ucx.protocol.messages import Cut, Stripe

_LONGEST = 24  # of text and bytes, unless a length is asked for
_MOST = 3  # entries of a list

Known: typing.TypeAlias = Mapping[type | str, st.SearchStrategy[typing.Any]]


def message_of(kind: type, known: Known | None = None) -> st.SearchStrategy[typing.Any]:
    return _strategy(inspect.type_info(kind), known or {})


def one_of(union: object, known: Known | None = None) -> st.SearchStrategy[typing.Any]:
    """Any message of a direction."""
    return st.one_of([message_of(kind, known) for kind in typing.get_args(union)])


def _strategy(info: inspect.Type, known: Known) -> st.SearchStrategy[typing.Any]:
    match info:
        case inspect.IntType():
            low = info.ge if info.ge is not None else -(1 << 40)
            high = info.lt - 1 if info.lt is not None else 1 << 60
            return st.integers(int(low), int(high)) | st.sampled_from([int(low), int(low) + 1, int(high)])
        case inspect.FloatType():
            return st.floats(info.ge or 0.0, info.le or 1e15, allow_subnormal=False)
        case inspect.BytesType():
            return st.binary(min_size=info.min_length or 0, max_size=min(info.max_length or _LONGEST, _LONGEST))
        case inspect.StrType():
            return st.text(st.characters(exclude_categories=["Cs"]), max_size=_LONGEST)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.EnumType():
            return st.sampled_from(info.cls)
        case inspect.UnionType():
            return st.one_of([_strategy(part, known) for part in info.types])
        case inspect.VarTupleType():
            return st.lists(_strategy(info.item_type, known), min_size=info.min_length or 0, max_size=_MOST).map(tuple)
        case inspect.StructType():
            if info.cls in known:
                return known[info.cls]
            if info.cls is Cut:
                return _cuts(known)
            fields = {f.name: known[f.name] if f.name in known else _strategy(f.type, known) for f in info.fields}
            return st.builds(info.cls, **fields)
    raise NotImplementedError(f"no strategy for {info}")


@st.composite
def _cuts(draw: st.DrawFn, known: Known) -> Cut:
    """Its stripes fill the object, or it could not be made."""
    versions = st.lists(message_of(Version, known), min_size=3, max_size=4, unique_by=lambda version: version.ref)
    whole, *pieces = draw(versions)
    size = draw(known["size"] if "size" in known else st.integers(0, 1 << 40))
    edges = sorted(draw(st.lists(st.integers(1, 1 << 20), min_size=len(pieces), max_size=len(pieces), unique=True)))
    edges[-1] = max(size, edges[-1])
    stripes = [Stripe(v, high - low) for v, low, high in zip(pieces, [0, *edges], edges, strict=False)]
    return Cut(whole, edges[-1], tuple(stripes))
