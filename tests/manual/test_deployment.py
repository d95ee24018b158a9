"""The files for operators. systemd's units are valid and their commands run; the Kubernetes manifests fit together and
the commands of their pods run as processes, each pod on an emulated host. Nothing runs under systemd or Kubernetes."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from hoplite_ucx.bench.hosts.namespaces import Cluster, Host
from tests.manual.conftest import ROOT
from tests.runtime.test_faults import without_address

FOLDER = ROOT / "docs" / "operating"
UNITS = sorted(FOLDER.glob("*.service"))
BIN = Path(sys.executable).parent
PATIENCE = 100.0


def environment(**more: str) -> dict[str, str]:
    return {**without_address(), "PATH": f"{BIN}:{os.environ['PATH']}", **more}


def await_line(process: "subprocess.Popen[str]", words: str) -> None:
    """Reads what it prints up to a line with these words. It prints it, or ends."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if words in line:
            return
    raise AssertionError("".join(said))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_a_unit_is_valid(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text()
    assert text.count("/usr/local/bin/hoplite") == 1
    copy = tmp_path / unit.name
    copy.write_text(text.replace("/usr/local/bin/hoplite", "/bin/true"))  # must exist where it is verified
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_commands_of_units_form_a_cluster_and_end_with_sigterm(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a secret of this test")
    token.chmod(0o600)
    given = {"HOPLITE_HOST": "127.0.0.1", "HOPLITE_TOKEN_FILE": str(token), "HOPLITE_STORE_MEMORY": "64MiB"}
    head = start_unit("hoplite-head@.service", given, "--port", "0", "--json")
    try:
        assert head.stdout is not None
        address = yaml.safe_load(head.stdout.readline())["address"]
        agent = start_unit("hoplite-agent@.service", {**given, "HOPLITE_ADDRESS": address})
        try:
            await_line(agent, "use it with")
        finally:
            end(agent)
    finally:
        end(head)


def start_unit(name: str, variables: Mapping[str, str], *more: str) -> "subprocess.Popen[str]":
    [command] = re.findall(r"^ExecStart=(.*)$", (FOLDER / name).read_text(), re.MULTILINE)
    for variable, value in variables.items():
        command = command.replace(f"${{{variable}}}", value)
    words = shlex.split(command.replace("/usr/local/bin/hoplite", str(BIN / "hoplite")))
    return subprocess.Popen([*words, *more], stdout=subprocess.PIPE, text=True, env=environment(**variables))


def end(process: "subprocess.Popen[str]") -> None:
    """As systemd and Kubernetes end it: the status must not look like a failure."""
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


# --- Kubernetes ----------------------------------------------------------------------------------------------------

MANIFESTS = {
    (each["kind"], each["metadata"]["name"]): each
    for each in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
}


def pod_of(kind: str, name: str) -> dict[str, Any]:
    return MANIFESTS[kind, name]["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def test_the_manifests_fit_together() -> None:
    service = MANIFESTS["Service", "hoplite-head"]["spec"]
    for kind, name in (("StatefulSet", "hoplite-head"), ("Deployment", "my-program")):
        labels = MANIFESTS[kind, name]["spec"]["template"]["metadata"]["labels"]
        assert MANIFESTS[kind, name]["spec"]["selector"]["matchLabels"] == labels
        users = {each["securityContext"]["runAsUser"] for each in containers(pod_of(kind, name))}
        assert len(users) == 1  # an agent serves its own user
    assert service["selector"] == {"app": "hoplite-head"}
    assert service["clusterIP"] == "None"
    assert MANIFESTS["StatefulSet", "hoplite-head"]["spec"]["serviceName"] == "hoplite-head"
    port = service["ports"][0]["port"]
    for pod in (pod_of("StatefulSet", "hoplite-head"), pod_of("Deployment", "my-program")):
        given_over = 30
        assert pod["terminationGracePeriodSeconds"] > given_over
        for container in containers(pod):
            for address in re.findall(r"hoplite-head:(\d+)", str(container)):
                assert int(address) == port
            for each in container.get("env", []):
                if secret := each.get("valueFrom", {}).get("secretKeyRef"):
                    assert secret["key"] in MANIFESTS["Secret", secret["name"]]["stringData"]


class Pod:
    """One pod on an emulated host. Names of services are put in place by hand: there is no DNS."""

    def __init__(self, host: Host, spec: dict[str, Any], names: Mapping[str, str], folder: Path) -> None:
        self.host = host
        self.spec = {each["name"]: each for each in containers(spec)}
        self._names = names
        self._mounts = {
            volume["name"]: self._files(volume["configMap"]["name"], folder) for volume in spec.get("volumes", [])
        }

    @staticmethod
    def _files(config_map: str, folder: Path) -> Path:
        for name, text in MANIFESTS["ConfigMap", config_map]["data"].items():
            (folder / name).write_text(text)
        return folder

    def variables(self, container: dict[str, Any]) -> dict[str, str]:
        found = {}
        for each in container.get("env", []):
            source = each.get("valueFrom", {})
            if "secretKeyRef" in source:
                secret = source["secretKeyRef"]
                found[each["name"]] = MANIFESTS["Secret", secret["name"]]["stringData"][secret["key"]]
            elif "fieldRef" in source:
                assert source["fieldRef"] == {"fieldPath": "status.podIP"}
                found[each["name"]] = self.host.address
            else:
                found[each["name"]] = self._known(each["value"])
        return found

    def start(self, name: str, command: list[str] | None = None) -> "subprocess.Popen[str]":
        container = self.spec[name]
        variables = self.variables(container)
        words = [self._known(word) for word in (container["command"] if command is None else command)]
        for variable, value in variables.items():
            words = [word.replace(f"$({variable})", value) for word in words]
        for mount in container.get("volumeMounts", []):
            words = [word.replace(mount["mountPath"], str(self._mounts[mount["name"]])) for word in words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return self.host.popen(words, env=environment(**variables), **pipes)

    def probe(self, name: str, kind: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            said, _ = (asked := self.start(name, self.spec[name][kind]["exec"]["command"])).communicate(
                timeout=PATIENCE
            )
            if asked.returncode == 0:
                return
            assert time.monotonic() < deadline, said

    def _known(self, word: str) -> str:
        for name, address in self._names.items():
            word = word.replace(name, address)
        return word


@pytest.mark.usefixtures("emulated_hosts")
def test_the_commands_of_pods_form_a_cluster_and_run_the_program(tmp_path: Path) -> None:
    with Cluster(hosts=3, rate=None) as cluster:
        names = {"hoplite-head": cluster.hosts[0].address}
        head = Pod(cluster.hosts[0], pod_of("StatefulSet", "hoplite-head"), names, tmp_path)
        running = [head.start("head")]
        await_line(running[0], "use it with")
        head.probe("head", "readinessProbe")
        for host in cluster.hosts[1:]:
            pod = Pod(host, pod_of("Deployment", "my-program"), names, tmp_path)
            running.append(pod.start("agent"))
            await_line(running[-1], "use it with")
            pod.probe("agent", "startupProbe")
            said, _ = (program := pod.start("program")).communicate(timeout=PATIENCE)
            assert (program.returncode, said) == (0, "weights 1000000.0\n")
        for process in reversed(running):
            end(process)
