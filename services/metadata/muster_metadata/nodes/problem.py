"""What can be wrong with a node of the log: a kind for programs, a sentence for people."""

from dataclasses import dataclass
from enum import StrEnum


class ProblemKind(StrEnum):
    """What is wrong with a node. Code decides by this, never by a sentence."""

    NOT_REACHED_YET = "not_reached_yet"
    """No attempt at a connection has ended yet."""
    UNREACHABLE = "unreachable"
    """No connection can be made."""
    SILENT = "silent"
    """It does not answer in time."""
    SLOW = "slow"
    """Too much waits for its answers."""
    BAD_CREDENTIALS = "bad_credentials"
    """It refuses user and password."""
    BAD_CERTIFICATE = "bad_certificate"
    """Its certificate is not accepted."""
    TLS_REFUSED = "tls_refused"
    """No TLS connection can be made."""
    COMMAND_REFUSED = "command_refused"
    """It answers a command with an error, mostly because the user lacks a right."""
    NO_SCRIPTS = "no_scripts"
    """It lost the scripts."""
    NONSENSE = "nonsense"
    """Its answer makes no sense."""
    UNFORESEEN = "unforeseen"
    """The connection ended for a reason that this program does not know."""
    LOADING = "loading"
    """It is reading its data after a start."""
    BUSY = "busy"
    """It runs a script of somebody, for longer than it lets others wait."""
    DISK = "disk"
    """It cannot write to its disk."""
    OUT_OF_MEMORY = "out_of_memory"
    """Its memory is used up to its limit."""
    REPLICA = "replica"
    """It follows another server."""
    EMPTY = "empty"
    """It has no data of a cluster."""
    OTHER_CONFIGURATION = "other_configuration"
    """The log has another configuration there."""
    OLD_CONFIGURATION = "old_configuration"
    """It does not know the newest configuration yet."""
    OTHER_NODE = "other_node"
    """It is another node, or of another cluster."""
    NOT_A_NODE = "not_a_node"
    """The configuration names another server in its place."""
    LACKS_LOGS = "lacks_logs"
    """It does not have all logs."""
    UNSURE = "unsure"
    """It restarted and may have forgotten its last answers."""
    DAMAGED = "damaged"
    """Logs lack entries in the middle."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a node.

    Attributes:
        kind: for programs.
        sentence: for people, about "it", the node; without a full stop.
    """

    kind: ProblemKind
    sentence: str

    def __str__(self) -> str:
        return self.sentence


NOT_REACHED_YET = Problem(ProblemKind.NOT_REACHED_YET, "it was not reached yet")
UNREACHABLE = Problem(ProblemKind.UNREACHABLE, "it cannot be reached")
SILENT = Problem(ProblemKind.SILENT, "it does not answer")
LOADING = Problem(ProblemKind.LOADING, "it reads its data after a start")
BUSY = Problem(ProblemKind.BUSY, "it runs a script that takes long, and answers nobody meanwhile")
UNVETTED = Problem(
    ProblemKind.UNSURE, "it restarted, and the others have not said yet whether it had a file before"
)
REPLICA = Problem(ProblemKind.REPLICA, "it is a replica; every node must be a primary of its own")
