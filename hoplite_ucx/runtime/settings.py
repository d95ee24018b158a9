"""All settings of this host, as one object: of the cluster, its store, its processes, its links, and its metrics.

Each comes from its default, the TOML file that `HOPLITE_CONFIG` or `--config` names, `HOPLITE_<SECTION>_<KEY>`, or an
argument; the later of these wins. They are read once, when a process starts, and checked whole before it does anything.
The cluster's settings are those of its directory: a node may repeat them, and is refused if it has others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from hoplite_ucx.protocol.settings import Settings, conflicts
from hoplite_ucx.settings.errors import ConfigurationError
from hoplite_ucx.settings.kinds import Choice, Count, Duration, FileName, Name, Setting, Size, settings_of
from hoplite_ucx.settings.reading import Argument, Origin, Place, Schema, Values, read
from hoplite_ucx.transports import configuration
from hoplite_ucx.transports.configuration import Configuration, TlsFiles

__all__ = [
    "SCHEMA",
    "DirectorySettings",
    "HostSettings",
    "LogSettings",
    "MetricsSettings",
    "ProcessSettings",
    "Row",
    "StoreSettings",
    "cluster_settings",
    "default_of",
    "load",
    "of_directory",
]

SMALL = 256 << 10


@dataclass(frozen=True, slots=True)
class StoreSettings:
    memory: Annotated[
        int | None,
        Size(
            "The limit of this host's store. Objects that nobody needs make room when it is reached; then puts and "
            "gets wait, and fail. Without it, the limit is 4 GiB, or half of this host's memory if that is less.",
            1,
            1 << 62,
        ),
    ] = None
    small: Annotated[
        int,
        Size(
            "Objects up to this size are copied between a program and its agent. Larger ones are mapped, which costs "
            "more at first and holds a file descriptor, and nothing for each byte.",
            64 << 10,
            4 << 20,
        ),
    ] = SMALL
    spare: Annotated[
        int,
        Size(
            "How much memory is made ready for objects that are yet to come, within the limit. Without it, every "
            "large put waits for the kernel to clear its pages.",
            0,
            1 << 40,
        ),
    ] = 256 << 20
    device_memory: Annotated[
        int | None,
        Size(
            "How much memory of each GPU the store may use. Objects for which there is no room there lie in memory of "
            "the host. Without it, a quarter of the device's memory.",
            0,
            1 << 62,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    port: Annotated[
        int | None,
        Count(
            "The port at which this host's agent serves its metrics to Prometheus. A directory serves its own at the "
            "next one. 0 takes free ports. Without it, nothing is served, and nothing is counted. It needs "
            "`pip install 'hoplite-ucx[metrics]'`.",
            0,
            65534,
        ),
    ] = None
    host: Annotated[
        str,
        Name(
            "The address of this host at which metrics are served. Programs that reach it read them without a token: "
            "another one than loopback is for networks that are trusted."
        ),
    ] = "127.0.0.1"

    def for_directory(self) -> MetricsSettings:
        return replace(self, port=self.port + 1) if self.port else self


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: Annotated[
        str,
        Choice(
            "What is logged: this and whatever is graver. `warning` is what operators should look at; `info` adds "
            "nodes that come and go, streams that break and calls that fail; `debug` adds what libraries below report.",
            "level",
            ("debug", "info", "warning", "error"),
        ),
    ] = "warning"
    file: Annotated[
        str | None,
        FileName(
            "Where agents and directories append their lines; without it, they write to standard error. Processes of "
            "one host may share a file. If the file is moved away, as logrotate does, it is made anew."
        ),
    ] = None
    format: Annotated[
        str,
        Choice(
            "`text` is for people; `json` is one object a line, with time, level, logger, process, node, pid, message, "
            "ref and exception.",
            "format",
            ("text", "json"),
        ),
    ] = "text"

    @property
    def tells_events(self) -> bool:
        """Whether what becomes of nodes, streams and calls is logged."""
        return self.level in ("debug", "info")


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    start: Annotated[
        float,
        Duration(
            "How long a directory or an agent may take to start. Loading its libraries takes most of that: give more "
            "where they come from a slow file system, or where many processes start at the same time.",
            0.1,
            3600.0,
            False,
        ),
    ] = 15.0
    stop: Annotated[
        float,
        Duration(
            "How long a directory or an agent may take to end after it was asked to. Then it is killed: other hosts "
            "notice that as well, and its objects are lost either way.",
            0.1,
            3600.0,
            False,
        ),
    ] = 3.0
    quiet: Annotated[
        float,
        Duration(
            "A program that waits for its agent and has heard nothing for this long asks whether the agent still "
            "runs. If there is no answer within the same time again, the agent counts as gone. If it is too short, "
            "an agent on an overloaded host is given up; if it is too long, calls without a time limit wait longer "
            "for one that stands still. An agent that was killed is noticed at once.",
            0.1,
            3600.0,
        ),
    ] = 10.0


@dataclass(frozen=True, slots=True)
class HostSettings:
    """`links` has [links], [ucx] and [tls]; `values` knows where each was found."""

    cluster: Settings = field(default_factory=Settings)
    store: StoreSettings = field(default_factory=StoreSettings)
    processes: ProcessSettings = field(default_factory=ProcessSettings)
    links: Configuration = field(default_factory=Configuration)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    log: LogSettings = field(default_factory=LogSettings)
    values: Values = field(default_factory=lambda: Values(SCHEMA), repr=False, compare=False)
    arguments: tuple[Argument, ...] = ()
    """Those that were given, for processes that read the same settings again."""

    def rows(self, cluster: Settings | None = None) -> Iterator[Row]:
        """Every setting as it is in force here, in a cluster with these settings if there is one."""
        for section, keys in self.values.schema.items():
            given = self.values.section(section)
            for key, setting in keys.items():
                place = self.values.place(section, key)
                value = given.get(key, default_of(section, key))
                if section == "cluster" and cluster is not None:
                    value, place = getattr(cluster, key), Place(Origin.CLUSTER, "the cluster")
                yield Row(section, key, value, place, setting)

    def check_against(self, cluster: Settings, address: str) -> None:
        """Raises a `ConfigurationError` if a value that was given here is another than the cluster's."""
        for key, value in self.values.section("cluster").items():
            theirs, show = getattr(cluster, key), SCHEMA["cluster"][key].show
            if value != theirs:
                problem = f"is {show(value)} here and {show(theirs)} in the cluster at {address}"
                remedy = "leave it out here, or set it where the directory is started, and start the cluster again"
                raise self.values.error("cluster", key, problem, remedy)

    def for_directory(self) -> dict[str, Any]:
        """What a directory's process needs, which is started again with the same after a crash."""
        files = self.links.certificates
        tls = None if files is None else {name: str(value) for name, value in asdict(files).items()}
        return {
            "cluster": msgspec.structs.asdict(self.cluster),
            "tls": tls,
            "metrics": asdict(self.metrics),
            "log": asdict(self.log),
        }

    def scaled(self, factor: float) -> HostSettings:
        """All timers shorter or longer together; costs and limits as they are."""
        return replace(
            self,
            cluster=self.cluster.scaled(factor),
            processes=replace(self.processes, **self._scaled_timers("processes", factor)),
            links=replace(self.links, **self._scaled_timers("links", factor)),
        )

    def _scaled_timers(self, section: str, factor: float) -> dict[str, Any]:
        timers = [key for key, setting in SCHEMA[section].items() if isinstance(setting, Duration) and setting.scales]
        return {key: getattr(getattr(self, section), key) * factor for key in timers}


class Row(NamedTuple):
    """One setting, for people. A value of None is decided at the start: see its doc."""

    section: str
    key: str
    value: Any
    place: Place
    setting: Setting[Any]

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def shown(self) -> str:
        return self.setting.show(self.value) if self.value not in (None, ()) else ""


SCHEMA: Schema = {
    "cluster": settings_of(Settings),
    "store": settings_of(StoreSettings),
    "processes": settings_of(ProcessSettings),
    **configuration.SCHEMA,
    "metrics": settings_of(MetricsSettings),
    "log": settings_of(LogSettings),
}


def load(
    path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    arguments: Iterable[Argument] = (),
) -> HostSettings:
    """Everything, checked. Raises a `ConfigurationError`."""
    given = tuple(arguments)
    values = read(SCHEMA, path, environment, given)
    cluster = Settings(**values.section("cluster"))
    for conflict in conflicts(cluster):
        culprit = max((conflict.key, conflict.other), key=lambda key: values.given("cluster", key))
        raise values.error("cluster", culprit, conflict.problem, conflict.remedy)
    return HostSettings(
        cluster,
        StoreSettings(**values.section("store")),
        ProcessSettings(**values.section("processes")),
        configuration.build(values),
        MetricsSettings(**values.section("metrics")),
        LogSettings(**values.section("log")),
        values,
        given,
    )


def default_of(section: str, key: str) -> Any:
    if section == "tls":
        return None
    defaults = HostSettings()
    owner = defaults.links.ucx if section == "ucx" else getattr(defaults, section)
    return getattr(owner, key)


class DirectorySettings(NamedTuple):
    """Those that a directory's process has."""

    cluster: Settings = Settings()
    certificates: TlsFiles | None = None
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()


def of_directory(settings: Mapping[str, Any]) -> DirectorySettings:
    """See `HostSettings.for_directory`."""
    tls = settings["tls"]
    files = None if tls is None else TlsFiles(**{key: Path(tls[key]) for key in SCHEMA["tls"]}, place=tls["place"])
    metrics = MetricsSettings(**settings["metrics"]).for_directory()
    return DirectorySettings(_cluster(settings["cluster"]), files, metrics, LogSettings(**settings["log"]))


def _cluster(settings: Mapping[str, Any]) -> Settings:
    """Of another process. Raises a `ValidationError` if it has other ones than this."""
    names = Settings.__struct_fields__
    if other := settings.keys() ^ set(names):
        raise msgspec.ValidationError(f"only one side has {', '.join(sorted(other))}")
    return msgspec.convert([settings[name] for name in names], Settings)


def cluster_settings(report: Mapping[str, Any], address: str) -> Settings:
    """Those of a cluster, of its directory's status. Raises a `ConfigurationError` if it runs another version."""
    try:
        return _cluster(report["settings"])
    except (KeyError, msgspec.ValidationError) as error:
        problem = f"its settings cannot be understood: {error}"
        remedy = "run the same version of hoplite-ucx everywhere"
        raise ConfigurationError(f"the cluster at {address}", "cluster", problem, remedy) from error
