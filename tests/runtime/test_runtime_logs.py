import errno
import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from muster_runtime.logs import SELDOM_S, LogSettings, Seldom, alarm, configure


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_events_are_json_with_fields() -> None:
    out = io.StringIO()
    configure(LogSettings(format="json"), out)
    structlog.get_logger().info("shard_loaded", shard=3, group="g\x1b[31m\nx", long="y" * 1_000)
    event = json.loads(out.getvalue())
    assert (event["event"], event["shard"], event["level"]) == ("shard_loaded", 3, "info")
    assert event["group"] == "g\\x1b[31m\\nx"
    assert len(event["long"]) == 256
    assert out.getvalue().count("\n") == 1


def test_nested_values_are_cleaned_too() -> None:
    out = io.StringIO()
    configure(LogSettings(format="json"), out)
    structlog.get_logger().info("e", ids=["a\r", {"k\n": b"\x00"}], other=object)
    event = json.loads(out.getvalue())
    assert event["ids"] == ["a\\r", {"k\\n": "b'\\x00'"}]


def test_lines_of_the_standard_library_join_in() -> None:
    out = io.StringIO()
    configure(LogSettings(format="json"), out)
    logging.getLogger("grpc").warning("bad\n%s", "thing")
    event = json.loads(out.getvalue())
    assert (event["event"], event["logger"], event["message"]) == ("library_log", "grpc", "bad\\nthing")


def test_the_level_holds_and_people_get_a_readable_line() -> None:
    out = io.StringIO()
    configure(LogSettings(format="human", level="warning"), out)
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud", group="a\nb")
    assert "quiet" not in out.getvalue()
    assert "loud" in out.getvalue()
    assert out.getvalue().count("\n") == 1


def test_an_alarm_is_an_error_that_says_so() -> None:
    out = io.StringIO()
    configure(LogSettings(format="json"), out)
    alarm("shard_failed", shard=3)
    event = json.loads(out.getvalue())
    assert (event["event"], event["level"], event["shard"]) == ("shard_failed", "error", 3)
    assert event["alarm"] is True


def test_exceptions_are_kept() -> None:
    out = io.StringIO()
    configure(LogSettings(format="json"), out)
    try:
        int("broken")
    except ValueError:
        structlog.get_logger().exception("failed")
    assert "ValueError: invalid literal" in json.loads(out.getvalue())["exception"]


class FullDisk(io.StringIO):
    """A stream that cannot be written for a while."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_a_full_disk_costs_log_lines_and_nothing_else() -> None:
    out = FullDisk()
    configure(LogSettings(format="json"), out)
    out.full = True
    structlog.get_logger().warning("unseen")
    logging.getLogger("grpc").warning("unseen too")
    out.full = False
    structlog.get_logger().info("seen")
    structlog.get_logger().info("seen again")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["event"], first["lines_lost_before"]) == ("seen", 2)
    assert "lines_lost_before" not in second


def test_a_closed_stream_costs_log_lines_and_nothing_else() -> None:
    out = io.StringIO()
    configure(LogSettings(format="json"), out)
    out.close()
    structlog.get_logger().warning("unseen")


def test_a_line_that_others_bring_about_is_logged_seldom_with_how_many_there_were() -> None:
    now_s = [50.0]
    lines = Seldom(lambda: now_s[0])
    assert [lines.count() for _ in range(4)] == [1, 0, 0, 0]
    now_s[0] += SELDOM_S - 0.1
    assert lines.count() == 0
    now_s[0] += 0.1
    assert [lines.count() for _ in range(2)] == [5, 0]
    now_s[0] += 1_000 * SELDOM_S
    assert lines.count() == 2
