"""Viewers without a browser: plain HTTP clients that read the changes as fast as they come.

    view_clients.py ADDRESS KEY COUNT

Commands come as lines: `look` connects all of them and is answered when each has read the first line, `leave` closes
them and is answered with the number of lines that they read.
"""

import http.client
import sys
import threading

_SECONDS = 30.0


class Client(threading.Thread):
    def __init__(self, address: str, key: str) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection(address, timeout=_SECONDS)
        self._key = key
        self._leaving = False
        self.begun = threading.Event()
        self.lines = 0

    def run(self) -> None:
        self._connection.request("GET", "/api/changes", headers={"Authorization": f"Bearer {self._key}"})
        answer = self._connection.getresponse()
        while not self._leaving and answer.readline():  # there is one every few seconds at least
            self.lines += 1
            self.begun.set()
        self._connection.close()

    def leave(self) -> int:
        self._leaving = True
        self.join(_SECONDS)
        return self.lines


def main() -> None:
    _, address, key, count = sys.argv
    clients: list[Client] = []
    for command in sys.stdin:
        if command.strip() == "look":
            clients = [Client(address, key) for _ in range(int(count))]
            for client in clients:
                client.start()
            answer = "looking" if all(client.begun.wait(_SECONDS) for client in clients) else "refused"
        else:
            answer = str(sum(client.leave() for client in clients))
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
