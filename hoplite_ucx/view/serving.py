"""A view that serves: the picture, what asks the cluster, and the web server, put together."""

import socket
from dataclasses import dataclass

from hoplite_ucx.runtime.launch.view_port import key_for, page_address
from hoplite_ucx.runtime.settings import load
from hoplite_ucx.transports.wire.addresses import socket_address
from hoplite_ucx.transports.wire.tls import open_tls
from hoplite_ucx.view.picture import Picture
from hoplite_ucx.view.server import ViewServer
from hoplite_ucx.view.source import Source


@dataclass(slots=True)
class View:
    server: ViewServer
    cluster: str
    address: str
    key: str

    @property
    def page(self) -> str:
        """The address for the browser, with the key."""
        return page_address(self.address, self.key)

    async def close(self) -> None:
        await self.server.close()


async def open_view(directory: str, token: bytes, sock: socket.socket, host: str) -> View:
    """Show the cluster of this directory on a socket that listens. Raises a `TransportError` if the directory is not
    there, or has another token."""
    picture = Picture()
    source = Source(directory, token, picture, open_tls(load().links.certificates))
    cluster = await source.find()
    key = key_for(token, cluster)
    server = ViewServer(source, picture, cluster, key, host)
    await server.start(sock)
    return View(server, cluster, socket_address(sock.getsockname()), key)
