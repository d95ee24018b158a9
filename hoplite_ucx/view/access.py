"""Who may look: whoever has the key, through a page of this server's own.

The *key* (see `runtime.launch.view_port`) is made from the cluster's token and gives nothing but the view: it neither
is the token nor reveals it. It travels behind the # of the address, which browsers do not send, and then in a header,
which no other site can make a browser send. So cross-site requests get nothing, and there are no cookies to steal. As a
second line, requests under a name that is not this host's are refused (DNS rebinding), and so are those that a page of
another site makes.
"""

import hmac
import ipaddress
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress

POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def own_names(host: str) -> set[str]:
    """The names under which this host may be asked, besides any number of an address."""
    names = {"localhost", host.lower()}
    with suppress(OSError):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return names


def refusal(headers: Mapping[str, str], names: Collection[str], key: str | None) -> tuple[int, str] | None:
    """Why a request is refused, with a status; None if it is not. `key`: the one that it must have, if any."""
    host = headers.get("Host", "")
    if not _is_own(host, names):
        return 403, "this view is not served under that name: use the address that was printed"
    origin = headers.get("Origin")
    if origin is not None and origin.lower() != f"http://{host.lower()}":
        return 403, "pages of other sites may not look"
    if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and key is not None:
        return 403, "pages of other sites may not look"
    if key is not None:
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode()):
            return 401, "the key is missing or wrong: open the address that was printed, or run `hoplite dashboard`"
    return None


def _is_own(host: str, names: Collection[str]) -> bool:
    """A number cannot be rebound to another address; a name can."""
    bare = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.rpartition(":")[0] or host
    if not host.startswith("[") and ":" not in host:
        bare = host
    with suppress(ValueError):
        ipaddress.ip_address(bare)
        return True
    return bare.lower() in names
