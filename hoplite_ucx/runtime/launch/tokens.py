"""The cluster's token, which every host must prove to join: from the environment, or from the user's own file.

`hoplite start --head` creates that file if no token is given, so that a cluster is never open to the other users of a
host. The user's other commands find it by themselves; programs need no token, since they reach their agent as this
user.
"""

import os
from pathlib import Path

from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.transports.wire.private_files import PrivateFileError, create_private, read_private

TOKEN = "HOPLITE_TOKEN"
TOKEN_FILE = "HOPLITE_TOKEN_FILE"

_SECRET_BYTES = 32


def own_file() -> Path | None:
    """Where the user's own token is, if there is one; None for a user without a home."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    folder = configured if os.path.isabs(configured) else os.path.expanduser("~/.config")
    return Path(folder) / "hoplite" / "token" if os.path.isabs(folder) else None


def given_token() -> bytes:
    """The token in the environment; empty if there is none. A variable that is empty counts as not set, but a named
    file must contain a token, and that of the variable if both are set."""
    token = os.fsencode(os.environ.get(TOKEN, "").strip())
    path = os.environ.get(TOKEN_FILE, "")
    if not path:
        return token
    filed = read_token_file(Path(path))
    if token and token != filed:
        detail = f"{TOKEN} and the file that {TOKEN_FILE} names, {path!r}, have different tokens"
        raise Failure(FailureKind.INVALID, detail, "unset one of the two variables").exception()
    return filed


def read_token() -> bytes:
    """The token that is given, or the user's own; empty if there is none."""
    if token := given_token():
        return token
    path = own_file()
    return read_token_file(path, own=True) if path is not None and os.path.lexists(path) else b""


def head_token() -> tuple[bytes, Path | None]:
    """The token of a new cluster, and the user's own file if it is from there. Makes the file if there is no token."""
    if token := given_token():
        return token, None
    path = own_file()
    if path is None:
        detail = "a new cluster needs a token, and this user has no home directory for one"
        raise Failure(FailureKind.INVALID, detail, f"set {TOKEN} or {TOKEN_FILE}").exception()
    if not os.path.lexists(path):
        try:
            create_private(path, os.urandom(_SECRET_BYTES).hex().encode() + b"\n")
        except PrivateFileError as error:
            raise _refused(path, error) from error
    return read_token_file(path, own=True), path


def read_token_file(path: Path, *, own: bool = False) -> bytes:
    try:
        return read_private(path, own=own).strip()
    except PrivateFileError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: PrivateFileError) -> HopliteError:
    detail, remedy = f"the token file {str(path)!r} {error.problem}", f"{error.remedy}, or set {TOKEN} or {TOKEN_FILE}"
    return Failure(FailureKind.INVALID, detail, remedy).exception()
