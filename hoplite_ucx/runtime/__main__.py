"""The processes of the runtime: `run_module.py hoplite_ucx.runtime directory|agent PARENT tied|free`, see `processes`.

PARENT is the number of the process that started it, or `any` if that is not known. Each loads only its own part, before
it reads its task, so that loading overlaps with waiting.
"""

import os
import sys
from typing import Any

from hoplite_ucx.runtime.launch.processes import Serve, Served, arguments_of, run
from hoplite_ucx.transports.wire.addresses import check_token


def _directory() -> Serve:
    from hoplite_ucx.runtime.directory.server import DirectoryServer
    from hoplite_ucx.runtime.settings import load, of_directory
    from hoplite_ucx.transports.wire.tls import open_tls

    async def serve(task: dict[str, Any]) -> Served:
        token = bytes.fromhex(task["token"])
        check_token(token, task["host"])
        settings, files = of_directory(task["settings"] if "settings" in task else load().for_directory())
        server = DirectoryServer(task["cluster"], token, settings, tls=open_tls(files))
        address = await server.start(task["host"], task["port"], successor=task["successor"])
        return Served({"address": address, "cluster": task["cluster"]}, server.close)

    return serve


def _agent() -> Serve:
    from hoplite_ucx.runtime.agent.warden import post_warden

    post_warden()  # while there is one thread

    from hoplite_ucx.runtime.agent.agent import Agent, AgentProfile
    from hoplite_ucx.runtime.settings import load

    async def serve(task: dict[str, Any]) -> Served:
        agent = Agent(
            AgentProfile(
                directory=task["directory"],
                token=bytes.fromhex(task["token"]),
                host=task["host"],
                port=task.get("port", 0),
                memory=task["memory"],
                rate=task["rate"],
                patience=task.get("patience"),
                settings=load(arguments=arguments_of(task)),
            )
        )
        await agent.start()
        report = {"agent": agent.agent_id, "cluster": agent.cluster, "address": agent.address}
        return Served(report, agent.close, agent.retire)

    return serve


if __name__ == "__main__":
    _, role, named, tie = sys.argv
    parent = os.getppid() if named == "any" else int(named)  # now: loading takes its time
    sys.exit(run({"directory": _directory, "agent": _agent}[role](), parent, tied_to_thread=tie == "tied"))
