"""Hypothesis strategies for messages, read off the types themselves: what a field's `Meta` allows, and its edges."""

import typing

from hypothesis import strategies as st
from msgspec import inspect

from hoplite_ucx.protocol.messages import ToDirectory, ToNode, ToPeer

_LONGEST = 24  # of text and bytes, unless a length is asked for
_MOST = 3  # entries of a list


def message_of(kind: type) -> st.SearchStrategy[typing.Any]:
    return _strategy(inspect.type_info(kind))


def _one_of(union: object) -> st.SearchStrategy[typing.Any]:
    return st.one_of([message_of(kind) for kind in typing.get_args(union)])


def to_directory() -> st.SearchStrategy[ToDirectory]:
    return _one_of(ToDirectory)


def to_node() -> st.SearchStrategy[ToNode]:
    return _one_of(ToNode)


def to_peer() -> st.SearchStrategy[ToPeer]:
    return _one_of(ToPeer)


def _strategy(info: inspect.Type) -> st.SearchStrategy[typing.Any]:
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
            return st.one_of([_strategy(part) for part in info.types])
        case inspect.VarTupleType():
            return st.lists(_strategy(info.item_type), max_size=_MOST).map(tuple)
        case inspect.StructType():
            return st.builds(info.cls, **{field.name: _strategy(field.type) for field in info.fields})
    raise NotImplementedError(f"no strategy for {info}")
