"""Values that can be neither stored nor filled, nor made of what is stored."""

from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError


class UnfitError(Exception):
    """What a part of a value is, such as "a meta tensor"; `path` says where, its end first, as far as that is known."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.remedy = remedy
        self.path: list[str] = []


def invalid(detail: str, remedy: str) -> HopliteError:
    return Failure(FailureKind.INVALID, detail, remedy).exception()
