"""The rows of one log: its entries through a decoder, from its beginning or from where a lake ends."""

from collections.abc import Iterator

from muster_core.log.page import Page
from muster_core.position import NOWHERE
from muster_server.verify.reader import PAGE_ENTRIES, LogUnreadableError

from muster_audit.lake.beginning import rows_before
from muster_audit.lake.decoder import Decoder, Part
from muster_audit.reading.sources import LogSource

_COPIED_ENTRIES = 3_000
"""Entries of an export that are taken together: making columns of a few hundred costs a quarter more."""


def final_rows(source: LogSource, shard: int, decoder: Decoder) -> Iterator[Part]:
    """Has a decoder take what follows its end, up to what is acknowledged; yields what becomes final.

    Raises:
        LogUnreadableError: entries are missing, and no snapshot stands for them.
    """
    for page in _following(source, shard, decoder):
        yield from decoder.take(page)


def _following(source: LogSource, shard: int, decoder: Decoder) -> Iterator[Page]:
    after = decoder.end
    node, upto = source.best_node(shard), source.acknowledged(shard)
    count = _COPIED_ENTRIES if source.is_copy else PAGE_ENTRIES
    for page in source.pages(shard, node, upto, count, after):
        if not page:
            continue
        if after == NOWHERE and page.first.offset > 1:
            decoder.begin(*rows_before(source, shard, page.first))
        elif page.first.offset != after.offset + 1:
            raise LogUnreadableError(
                f"{source.name(shard)} goes on at {page.first.stream_id}, and the lake ends at "
                f"{after.stream_id}: what is between them was trimmed; build from an export"
            )
        after = page.last
        yield page
