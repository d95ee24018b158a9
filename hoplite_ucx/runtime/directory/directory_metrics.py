"""What a directory exports besides what its machine did: its nodes and its objects, and how many nodes it lost."""

from hoplite_ucx import __version__
from hoplite_ucx.metrics.families import Family, Kind, Sample
from hoplite_ucx.protocol import Directory
from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.runtime.directory.lookup_sessions import Readers

_STATES = ("connected", "suspect", "away")


def families(machine: Directory, readers: Readers) -> list[Family]:
    states = [_state(member) for member in machine.nodes()]
    tally = machine.tally
    labels = {"cluster": machine.cluster, "incarnation": str(machine.incarnation), "version": __version__}
    return [
        Family(Kind.GAUGE, "hoplite_directory_info", "Always 1.", [Sample(1, tuple(labels.values()))], tuple(labels)),
        Family(
            Kind.GAUGE,
            "hoplite_nodes",
            "Members of the cluster.",
            [Sample(states.count(state), (state,)) for state in _STATES],
            ("state",),
        ),
        Family(Kind.GAUGE, "hoplite_objects", "Refs that the directory knows.", [Sample(machine.known_objects())]),
        Family(Kind.GAUGE, "hoplite_readers", "Programs that ask the directory themselves.", [Sample(len(readers))]),
        Family(
            Kind.COUNTER,
            "hoplite_lookups",
            "Questions for small objects that the directory answered to programs.",
            [Sample(readers.answered)],
        ),
        Family(Kind.COUNTER, "hoplite_joins", "Nodes that became members.", [Sample(tally.joins)]),
        Family(Kind.COUNTER, "hoplite_suspicions", "Nodes that were suspected.", [Sample(tally.suspicions)]),
        Family(Kind.COUNTER, "hoplite_deaths", "Nodes that were declared dead.", [Sample(tally.deaths)]),
    ]


def _state(member: Member) -> str:
    return "suspect" if member.suspect else "connected" if member.connected else "away"
