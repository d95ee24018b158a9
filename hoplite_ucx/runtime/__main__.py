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
    from hoplite_ucx.runtime.shell.event_logs import DirectoryLog
    from hoplite_ucx.runtime.shell.logs import begin_logging
    from hoplite_ucx.transports.wire.tls import open_tls

    async def serve(task: dict[str, Any]) -> Served:
        token = bytes.fromhex(task["token"])
        check_token(token, task["host"])
        settings = of_directory(task["settings"] if "settings" in task else load().for_directory())
        begin_logging(settings.log, "directory", "")
        server = DirectoryServer(task["cluster"], token, settings.cluster, tls=open_tls(settings.certificates))
        if settings.log.tells_events:
            server.observe(DirectoryLog())
        address = await server.start(task["host"], task["port"], successor=task["successor"])
        report = {"address": address, "cluster": task["cluster"], "metrics": server.serve_metrics(settings.metrics)}
        return Served(report, server.close)

    return serve


def _agent() -> Serve:
    from hoplite_ucx.runtime.agent.warden import post_warden

    post_warden()  # while there is one thread

    from hoplite_ucx.runtime.agent.agent import Agent, AgentProfile
    from hoplite_ucx.runtime.settings import load
    from hoplite_ucx.runtime.shell.event_logs import NodeLog
    from hoplite_ucx.runtime.shell.logs import begin_logging

    async def serve(task: dict[str, Any]) -> Served:
        settings = load(arguments=arguments_of(task))
        agent = Agent(
            AgentProfile(
                directory=task["directory"],
                token=bytes.fromhex(task["token"]),
                host=task["host"],
                port=task.get("port", 0),
                memory=task["memory"],
                rate=task["rate"],
                patience=task.get("patience"),
                settings=settings,
            )
        )
        begin_logging(settings.log, "agent", f"n{agent.agent_id}")
        if settings.log.tells_events:
            agent.observe(NodeLog())
        await agent.start()
        report = {
            "agent": agent.agent_id,
            "cluster": agent.cluster,
            "address": agent.address,
            "metrics": agent.metrics_url,
        }
        return Served(report, agent.close, agent.retire)

    return serve


if __name__ == "__main__":
    _, role, named, tie = sys.argv
    parent = os.getppid() if named == "any" else int(named)  # now: loading takes its time
    sys.exit(run({"directory": _directory, "agent": _agent}[role](), parent, tied_to_thread=tie == "tied"))
