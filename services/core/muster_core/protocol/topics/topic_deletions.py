"""Deletions of topics, carried out in the groups of a shard."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from muster_protos.limits import PARKED_PREFIX, topic_of
from muster_protos.muster.log.v1 import records_pb2

from muster_core.catalog import Catalog
from muster_core.events import TopicsChanged
from muster_core.features import Feature
from muster_core.log.snapshot import Covered
from muster_core.position import NOWHERE, Position
from muster_core.protocol.context import ShardContext
from muster_core.protocol.open_append import nothing_follows
from muster_core.protocol.topics.tombstones import STEP_BYTES, offset_tombstones, tombstones_by_topic
from muster_core.state.published import TopicPartition, partitions_in


class TopicDeletions:
    """Carries deletions of topics out in the groups of a shard, each once (docs/safety.md, "Topics").

    A deletion removes what is in the log before it, commits that are on their way included, and nothing
    that comes after. A record in the log says up to where in the catalog's log that was done, so that the
    next owner neither does it again nor leaves one out.

    Args:
        context: the shard.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._carried_out = NOWHERE
        self._recorded = NOWHERE
        self._named: dict[str, int] | None = None
        self._known: Mapping[str, int] = {}
        self._level_with: Catalog | None = None

    def restore(self, covered: Covered) -> None:
        """A snapshot was begun."""
        self._context.application.catalog_place = covered.catalog_place
        self._context.application.incarnations.update(covered.incarnations)
        removed = {topic: frozenset(numbers) for topic, numbers in covered.removed}
        self._context.application.removed.update(removed)

    def carry_out(self, event: TopicsChanged) -> None:
        """Takes in the catalog, and removes what is of topics that were deleted since."""
        context, catalog = self._context, event.catalog
        deleted = event.deleted
        if catalog is not None:
            deleted |= self._deleted_since(self._since(event, catalog), catalog)
            context.catalog = catalog
        if not deleted:
            return
        groups = context.groups.peopled()
        for group in groups:
            if len(group.ends):
                group.ends.forget_topics(deleted)
                group.weigh()
        records = list(self._tombstones(deleted))
        # Also of groups without an offset. What those in quarantine own is not known.
        owned = [group.renew(deleted) for group in groups] if self._records else []
        if self._records and (
            records
            or any(owned)
            or context.quarantine.groups
            or self._is_about_to_be_owned(deleted)
            or not deleted.isdisjoint(self._incarnations)
            or not deleted.isdisjoint(self._noted_removals())
        ):
            records.append(self._seen(deleted))
            context.deletions.append(deleted)
            context.append(records, self._noted, step_bytes=STEP_BYTES)
        elif records:
            context.append(records, nothing_follows, step_bytes=STEP_BYTES)

    def _since(self, event: TopicsChanged, catalog: Catalog) -> Position:
        """Up to where deletions were carried out before an event."""
        self._recorded = max(self._recorded, self._context.application.catalog_place)
        since = max(self._carried_out, self._recorded)
        if not since.offset:
            since = Position(catalog.epoch, event.carried_out or catalog.offset)
        elif not since.epoch:  # an owner of an earlier version wrote it
            since = Position(catalog.epoch, since.offset)
        self._carried_out = max(since, catalog.place)
        return since

    def _deleted_since(self, since: Position, catalog: Catalog) -> frozenset[str]:
        """Topics that were deleted after a place in the catalog's log.

        Where some deletions are forgotten incarnations are compared, and so they are in a later epoch: if the
        catalog's log lost its end, it has used offsets up to the place again.
        """
        if catalog.place < since:
            return frozenset()
        deleted = catalog.deleted_since(since.offset)
        if since.offset < catalog.deletions_since or since.epoch < catalog.epoch:
            deleted |= {
                name
                for name, incarnation in self._incarnations.items()
                if catalog.incarnations.get(name) not in (incarnation, 0)
            }
        return deleted

    def _noted(self) -> None:
        """The log says what the oldest deletion did, after every assignment that was made before it."""
        self._context.deletions.popleft()

    def _is_about_to_be_owned(self, topics: frozenset[str]) -> bool:
        """Whether an assignment that is on its way to the log gives something of these topics."""
        return any(
            topic in topics
            for record in self._context.on_their_way()
            for member in record.assignment_committed.members
            for topic, _ in partitions_in(member.assignment)
        ) or any(
            entry.topic in topics
            for record in self._context.on_their_way()
            for entry in record.member_stepped.given
        )

    def _noted_removals(self) -> Iterator[str]:
        """Topics of which the log says, or is about to, that partitions were removed."""
        yield from self._context.application.removed
        for record in self._context.on_their_way():
            for entry in record.partitions_removed.topics:
                yield entry.topic

    def note_before(self, topics: Iterable[str]) -> None:
        """Appends what the log must say before offsets or an assignment in these topics.

        That is how far deletions were carried out, and which topics of these names are meant: so a later
        owner finds out that one was deleted also when the catalog has forgotten the deletion.
        """
        catalog = self._context.catalog
        if catalog is not self._level_with:
            if not self._records:
                return
            self._recorded = max(self._recorded, self._context.application.catalog_place)
            if not self._recorded.offset:
                topics = {*topics, *self._topics()}  # what is in the log without it
            self._known = catalog.incarnations if catalog.place >= self._carried_out else {}
        known, named = self._known, self._incarnations
        new = {name: known[name] for name in topics if name in known and known[name] != named.get(name)}
        if not new and catalog is self._level_with:
            return  # nearly always: the log says all of it
        if new or not self._is_level(catalog):
            self._context.append([self._seen(frozenset(), new)], nothing_follows)
        if self._is_level(catalog):
            self._level_with = catalog

    def _is_level(self, catalog: Catalog) -> bool:
        """Whether the log says, or is about to say, that all deletions of the catalog were carried out."""
        return self._recorded.offset >= max(1, catalog.last_deletion)

    @property
    def _incarnations(self) -> dict[str, int]:
        """Of the topics that the log names, what is on its way there included."""
        if self._named is None:
            self._named = dict(self._context.application.incarnations)
        return self._named

    def _topics(self) -> Iterator[str]:
        """Names in which groups have offsets or own partitions."""
        for group in (*self._context.groups.values(), *self._context.held.values()):
            yield from group.offsets.topics()
            yield from (topic for topic, _ in group.owners)
            if group.incremental is not None:
                yield from (topic for topic, _ in group.incremental.owners)

    @property
    def _records(self) -> bool:
        return self._carried_out.offset > 0 and Feature.TOPIC_INCARNATIONS in self._context.features

    def _seen(
        self, deleted: frozenset[str], new: Mapping[str, int] = MappingProxyType({})
    ) -> records_pb2.Record:
        self._recorded = self._carried_out
        for name in deleted:
            self._incarnations.pop(name, None)
        self._incarnations.update(new)
        record = self._context.record()
        record.critical = True
        seen = record.topics_seen
        seen.catalog_offset, seen.catalog_epoch = self._carried_out.offset, self._carried_out.epoch
        seen.topics.extend(sorted(deleted))
        for name, incarnation in sorted(new.items()):
            seen.incarnations.add(name=name, incarnation=incarnation)
        return record

    def _tombstones(self, topics: frozenset[str]) -> Iterator[records_pb2.Record]:
        """The records that remove all offsets in these topics, those on their way to the log included."""
        context = self._context
        coming: dict[str, set[TopicPartition]] = defaultdict(set)
        for record in context.on_their_way():
            commit = record.offset_committed
            for entry in commit.offsets:
                if topic_of(entry.topic) in topics:
                    coming[commit.group_id].add((entry.topic, entry.partition))
        names = topics | {PARKED_PREFIX + topic for topic in topics}
        ids = sorted(context.groups.by_name.of(names))
        for group in (*map(context.groups.__getitem__, ids), *context.held.values()):
            # Also of one that cannot be read: left out, it would have them again after its release.
            context.working_on = group
            gone = group.offsets.numbers_of(names)
            if coming and (more := coming.pop(group.group_id, None)):
                table = group.offsets.table  # less its keys, a set would be made by a look at each of them
                for topic, number in sorted(one for one in more if one not in table):
                    gone.setdefault(topic, []).append(number)
            if gone:
                yield from tombstones_by_topic(context, group.group_id, gone, "topic_deleted")
        context.working_on = None
        for group_id, partitions in coming.items():
            yield from offset_tombstones(context, group_id, partitions, "topic_deleted")
