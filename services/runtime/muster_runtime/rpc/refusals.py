"""Refusals: what a servicer raises to answer with a gRPC status instead of a message.

Outcomes of the group protocol are never raised; they are `ErrorCode`s in answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from muster_runtime.logs import clean_text

STATUS_DETAILS_KEY = "grpc-status-details-bin"
"""Trailer that carries a serialised `google.rpc.Status`."""

PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailer with the time after which to try again, in ms (gRFC A6)."""

_VIOLATIONS_MAX = 20
_DETAILS_MAX_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request that is not acceptable.

    Attributes:
        field: path of the field, for example `group_ids[3]`.
        description: what is wrong, with the limit; never the value.
    """

    field: str
    description: str


class Refused(Exception):
    """A call is answered with a gRPC status. Servicers raise it; the server answers.

    Attributes:
        status: the gRPC status.
        message: one sentence for people, without internals.
    """

    status: grpc.StatusCode = grpc.StatusCode.UNKNOWN

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def details(self) -> Sequence[Message]:
        """Messages of `google.rpc` that programs read."""
        return ()

    def status_details(self) -> bytes:
        """Serialised `google.rpc.Status` of this refusal."""
        packed = []
        for detail in self.details():
            box = any_pb2.Any()
            box.Pack(detail)
            packed.append(box)
        code = code_pb2.Code.Value(self.status.name)
        body: bytes = status_pb2.Status(code=code, message=self.message, details=packed).SerializeToString()
        return body

    def trailers(self) -> tuple[tuple[str, str | bytes], ...]:
        """What the answer carries beside status and message."""
        return ((STATUS_DETAILS_KEY, self.status_details()),)


class InvalidArgument(Refused):
    """The request is malformed or too large. Sending it again cannot help."""

    status = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(
            Violation(clean_text(v.field, 128), clean_text(v.description))
            for v in violations[:_VIOLATIONS_MAX]
        )
        more = len(violations) - len(self.violations)
        text = "; ".join(
            f"{v.field}: {v.description}" if v.field else v.description for v in self.violations[:5]
        )
        super().__init__(f"{text}; and {more} more" if more > 0 else text)

    def details(self) -> Sequence[Message]:
        """A `BadRequest` that names the fields."""
        bad = error_details_pb2.BadRequest()
        for violation in self.violations:
            bad.field_violations.add(field=violation.field, description=violation.description)
            if bad.ByteSize() > _DETAILS_MAX_BYTES:
                del bad.field_violations[-1]
                break
        return (bad,)


class _Retriable(Refused):
    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms

    def details(self) -> Sequence[Message]:
        """A `RetryInfo` that says when to try again."""
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(self.retry_after_ms)
        return (error_details_pb2.RetryInfo(retry_delay=delay),)

    def trailers(self) -> tuple[tuple[str, str | bytes], ...]:
        """Also as the header that gRPC itself knows for it, for clients without `google.rpc`."""
        return (*super().trailers(), (PUSHBACK_KEY, str(self.retry_after_ms)))


class ResourceExhausted(_Retriable):
    """A quota or a limit of this server is reached. Try again after `retry_after_ms`, here or elsewhere."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED


class Unavailable(_Retriable):
    """This server cannot answer now. Try again after `retry_after_ms`, here or elsewhere."""

    status = grpc.StatusCode.UNAVAILABLE


class FailedPrecondition(Refused):
    """The system is not in a state for this call; trying again does not change that by itself."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class PermissionDenied(Refused):
    """The caller may not do that. Trying again does not help until somebody gives it the right."""

    status = grpc.StatusCode.PERMISSION_DENIED


class Unauthenticated(Refused):
    """The caller has not proved who it is. It may try again with another proof."""

    status = grpc.StatusCode.UNAUTHENTICATED


class Unimplemented(Refused):
    """This version does not have the call."""

    status = grpc.StatusCode.UNIMPLEMENTED


def undecodable() -> InvalidArgument:
    """The refusal of bytes that are not the message they should be."""
    return InvalidArgument([Violation("", "the request is not a valid message of its type")])


def oversized(limit_bytes: int) -> InvalidArgument:
    """The refusal of a request with more bytes than the call accepts."""
    return InvalidArgument([Violation("", f"the request is larger than {limit_bytes} bytes")])
