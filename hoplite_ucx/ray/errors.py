"""Errors in a Ray user's words."""

from hoplite_ucx.errors import Failure, FailureKind, HopliteError


def closed(detail: str, remedy: str) -> HopliteError:
    return Failure(FailureKind.CLOSED, detail, remedy).exception()


def not_started(job: str) -> HopliteError:
    detail = f"hoplite does not run in the Ray job {job}, or the process that started it has ended"
    return closed(detail, "call hoplite_ucx.ray.init() in the driver, before the first task")
