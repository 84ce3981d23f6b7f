"""The shards of this process: claims, pulls, hand-overs, one task per shard at a time."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from muster_core.events import Event, Push
from muster_core.shard import Shard
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.v1 import common_pb2
from muster_runtime.addresses import Address
from muster_runtime.cluster.view import ClusterView
from muster_runtime.logs import alarm

from muster_coordinator.log.loader import Loader
from muster_coordinator.log.log_image import LoadFailed, LogImage
from muster_coordinator.log.shard_log import LogStopped
from muster_coordinator.ownership.cluster_follower import ClusterFollower
from muster_coordinator.ownership.lease import LeaseKeeper
from muster_coordinator.ownership.outlook import Outlook
from muster_coordinator.ownership.peers import Peers
from muster_coordinator.ownership.reconcile import Claim, Picture, Pull, may_give, plan, still_wanted
from muster_coordinator.shard.dependencies import Dependencies
from muster_coordinator.shard.owned_shard import OwnedShard, ShardListener
from muster_coordinator.shard.phase import Phase

log = structlog.get_logger()

_LOOK_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class OwnershipPace:
    """Limits and times of ownership.

    Attributes:
        tick_ms: how often the plan is made again even if nothing changed.
        join_delay_ms: how long this process must be among the live ones before it takes its first shard.
        settle_ms: the live set must be unchanged for so long before a shard moves for balance.
        moves_max: claims and pulls in flight at a time.
        stuck_ms: a claim or pull that takes longer does not count in `moves_max`: its log may be out of reach
            for hours, and others wait.
        handoffs_max: hand-overs that were asked for, at a time: nobody serves a shard during one, so a few
            quick ones are better than many that wait for each other.
        retry_ms: pause before a shard whose claim or pull failed is tried again; it doubles.
        retry_max_ms: longest such pause.
        stale_owner_ms: how long entries of the owner table that name this process are not believed after it
            gave a shard up.
        drain_limit_ms: how long a draining process waits for its shards to be pulled.
        quiet_ms: a shard whose log confirmed nothing for so long asks if its claim is still the last one.
    """

    tick_ms: int = 250
    join_delay_ms: int = 300
    settle_ms: int = 5_000
    moves_max: int = 16
    stuck_ms: int = 5_000
    handoffs_max: int = 4
    retry_ms: int = 200
    retry_max_ms: int = 5_000
    stale_owner_ms: int = 2_000
    drain_limit_ms: int = 10_000
    quiet_ms: int = 10_000


class Ownership(ShardListener):
    """Brings what this process owns in line with what it should own.

    Args:
        me: this coordinator, as clients reach it.
        view: the cluster, pushed by metadata.
        lease: held or not; carries to metadata what is served.
        follower: the topics and the features.
        shared: what all shards share.
        loader: reads logs.
        peers: asks other coordinators.
        pace: limits and times.

    Attributes:
        shards: those that are here, or about to be, by number.
        outlook: what the cluster looks like from here.
        draining: whether this process gives its shards up, to end.
    """

    def __init__(
        self,
        me: common_pb2.Coordinator,
        view: ClusterView,
        lease: LeaseKeeper,
        follower: ClusterFollower,
        shared: Dependencies,
        loader: Loader,
        peers: Peers,
        pace: OwnershipPace,
    ) -> None:
        self.shards: dict[int, OwnedShard] = {}
        self.outlook = Outlook(
            me, view, self.shards.keys(), self._now_ms, pace.settle_ms, pace.stale_owner_ms
        )
        self.draining = False
        self._me = me
        self._view = view
        self._lease = lease
        self._follower = follower
        self._shared = shared
        self._listeners: list[ShardListener] = []
        self._loader = loader
        self._peers = peers
        self._pace = pace
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._begun_ms: dict[int, int] = {}
        self._pulls_not_asked: set[int] = set()
        self._not_before_ms: dict[int, int] = {}
        self._failures: dict[int, int] = {}
        self._joining: asyncio.TimerHandle | None = None
        self._known_addresses: frozenset[Address] = frozenset()
        self._catching_up: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._tickers: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] = lambda: None
        self._emptied = asyncio.Event()
        self._handoffs = asyncio.Semaphore(pace.handoffs_max)
        self._stopped = False

    # --- life

    def listen(self, listener: ShardListener) -> None:
        """Adds a listener that is notified of the shards before this one is."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Begins to reconcile, on every change of the view and on a tick."""
        self._unsubscribe = self._view.subscribe(self.reconcile)
        loop = asyncio.get_running_loop()
        self._tickers = [
            loop.create_task(self._tick_forever(), name="ownership"),
            loop.create_task(self._ask_quiet_logs(), name="quiet-logs"),
        ]

    def owner_elsewhere(self, shard: int) -> common_pb2.Coordinator | None:
        """See `Outlook.owner_elsewhere`."""
        return self.outlook.owner_elsewhere(shard)

    async def drain(self) -> None:
        """Lets successors pull all shards; gives up the rest after a limit, or if nobody can take them."""
        self.draining = True
        self._announce()
        for shard in tuple(self._pulls_not_asked):
            self._cancel(shard)
        limit_ms = self._now_ms() + self._pace.drain_limit_ms
        while self.shards and self._now_ms() < limit_ms and self._can_hand_over():
            self._emptied.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.tick_ms / 1000):
                    await self._emptied.wait()
        if self.shards:
            log.warning("shards_released", shards=len(self.shards), others_live=self.outlook.others_live)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*(shard.hand_over(None) for shard in tuple(self.shards.values())))

    async def stop(self) -> None:
        """Stops everything at once; what is still served here is dropped."""
        self._stopped = True
        self._unsubscribe()
        if self._joining is not None:
            self._joining.cancel()
        tasks = [*self._tasks.values(), *self._background, *self._tickers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for shard in tuple(self.shards.values()):
            shard.unload(None)

    @property
    def cores(self) -> list[Shard]:
        """The shards that are loaded, to be read only."""
        return [shard.core for shard in self.shards.values() if shard.core is not None]

    @property
    def core_failures(self) -> int:
        """How often a core raised."""
        return self._shared.faults.count

    # --- lease

    def suspended(self) -> None:
        """The lease's deadline passed."""
        self._follower.lapsed()
        if self._catching_up is not None:
            self._catching_up.cancel()
        for shard in self.shards.values():
            shard.suspend()

    def resumed(self) -> None:
        """The lease is held, for the first time or again; nothing is served before the topics are known."""
        if self._catching_up is not None:
            self._catching_up.cancel()
        self._catching_up = self._in_background(self._catch_up())

    async def _catch_up(self) -> None:
        await self._follower.catch_up(self._notify)
        self.reconcile()

    def _notify(self, event: Event) -> None:
        for shard in tuple(self.shards.values()):
            shard.notify(event)

    # --- what others ask

    async def give(self, number: int, asker: common_pb2.Coordinator) -> peer_pb2.RequestHandoffResponse:
        """Hands a shard over to a coordinator that asks for it, or says why not."""
        shard = self.shards.get(number)
        if shard is None or shard.phase in (Phase.FAILED, Phase.GONE, Phase.ELSEWHERE):
            return _no(peer_pb2.HANDOFF_OUTCOME_NOT_OWNER, "this coordinator does not serve the shard")
        if shard.phase is not Phase.SERVING or shard.suspended:
            return _no(peer_pb2.HANDOFF_OUTCOME_BUSY, f"the shard is {shard.phase.value}")
        picture = self.outlook.picture()
        node = self._view.node(asker.node_id)
        may = picture is not None and may_give(picture, number, asker.node_id, draining=self.draining)
        if node is None or not may:
            return _no(peer_pb2.HANDOFF_OUTCOME_DECLINED, "by this coordinator's view the shard stays here")
        epoch = shard.epoch
        # The address that it has a lease with: callers are sent there, whoever it was that asked.
        successor = common_pb2.Coordinator(
            node_id=node.node_id, host=node.host, port=node.port, shard=number, shard_epoch=epoch
        )
        self.outlook.gave(number, successor)
        await asyncio.shield(self._in_background(shard.hand_over(successor)))
        log.info("shard_handed_over", shard=number, epoch=epoch, successor=asker.node_id)
        return peer_pb2.RequestHandoffResponse(
            outcome=peer_pb2.HANDOFF_OUTCOME_HANDED_OVER, shard_epoch=epoch
        )

    # --- reconciling

    def pushed(self, shard: OwnedShard, push: Push) -> None:
        """See `ShardListener`."""
        for listener in self._listeners:
            listener.pushed(shard, push)

    def changed(self, shard: OwnedShard) -> None:
        """See `ShardListener`."""
        for listener in self._listeners:
            listener.changed(shard)
        if shard.phase is Phase.GONE and self.shards.get(shard.number) is shard:
            del self.shards[shard.number]
            if shard.reloads and not self._stopped:
                self._not_before_ms[shard.number] = self._shared.faults.not_before_ms(shard.number)
                asyncio.get_running_loop().call_soon(self.reconcile)
            else:
                self.outlook.lost(shard.number, shard.epoch)
                self._shared.faults.forget(shard.number)
        if shard.log_missing and shard.phase is Phase.FAILED:
            self._in_background(self._take_again(shard))
        if shard.phase is Phase.SERVING:
            self.outlook.took(shard.number)
            self._failures.pop(shard.number, None)
        if not self.shards:
            self._emptied.set()
        if not self._stopped:
            self._announce()

    def reconcile(self) -> None:
        """Begins what should be done now. Cheap when nothing is."""
        if self._stopped:
            return
        self._lease.set_lease_ms(self._view.lease_ms)
        self._note_live()
        self._follower.note(self._notify)
        picture = self.outlook.picture()
        if picture is None:
            return
        self._check_foreign_owners(picture)
        for shard in tuple(self._pulls_not_asked):
            if not still_wanted(picture, shard):
                self._cancel(shard)
        if not self._follower.may_answer(self._now_ms()):
            return
        for held in self.shards.values():
            if held.suspended:
                held.resume()
        if not self.draining and self._joined(picture):
            self._begin(plan(picture))

    def _joined(self, picture: Picture) -> bool:
        """Whether this process has been a live one for long enough to trust that nobody owns a shard.

        An instance of metadata learns of others' leases and claims by reading the tables now and then: its
        first picture may lack owners that are there.
        """
        live_ms = self.outlook.live_here_ms(picture)
        if live_ms is None:
            return False
        left_ms = self._pace.join_delay_ms - live_ms
        if left_ms > 0 and self._joining is None:
            loop = asyncio.get_running_loop()
            self._joining = loop.call_later(left_ms / 1000, self.reconcile)
        return left_ms <= 0

    def _begin(self, actions: list[Claim | Pull]) -> None:
        now_ms = self._now_ms()
        stuck_ms = self._pace.stuck_ms
        moving = sum(now_ms - begun_ms < stuck_ms for begun_ms in self._begun_ms.values())
        for action in actions:
            if moving >= self._pace.moves_max:
                return
            if self._not_before_ms.get(action.shard, 0) > now_ms or action.shard in self._tasks:
                continue
            phase = Phase.CLAIMING if isinstance(action, Claim) else Phase.ELSEWHERE
            shard = OwnedShard(action.shard, self._shared, self, phase, action.above_epoch)
            self.shards[action.shard] = shard
            work = self._claim(shard, action) if isinstance(action, Claim) else self._pull(shard, action)
            task = asyncio.get_running_loop().create_task(self._acquire(shard, work))
            self._tasks[action.shard], self._begun_ms[action.shard] = task, now_ms
            moving += 1

    async def _acquire(self, shard: OwnedShard, work: Coroutine[Any, Any, None]) -> None:
        number = shard.number
        try:
            await work
        except LogStopped as error:
            if error.fenced:
                log.warning("claim_lost", shard=number, reason=str(error))
            else:
                alarm("log_damaged", shard=number, reason=str(error))
        except LoadFailed:
            pass  # the shard stays, as FAILED
        except Exception:
            log.exception("claim_failed", shard=number)
        finally:
            self._pulls_not_asked.discard(number)
            self._tasks.pop(number, None)
            self._begun_ms.pop(number, None)
            if shard.phase in (Phase.ELSEWHERE, Phase.CLAIMING, Phase.LOADING):
                self.shards.pop(number, None)
                self._pause(number)
                if not self.shards:
                    self._emptied.set()
            if not self._stopped:
                asyncio.get_running_loop().call_soon(self.reconcile)

    async def _claim(self, shard: OwnedShard, action: Claim) -> None:
        await shard.claim(action.above_epoch, self._image(shard.number))

    async def _pull(self, shard: OwnedShard, action: Pull) -> None:
        self._pulls_not_asked.add(shard.number)
        image = self._image(shard.number)
        try:
            await self._loader.preload(image)
        except LoadFailed as error:
            # The owner serves it; do not take from it what this process cannot read.
            alarm("preload_failed", shard=shard.number, reason=str(error))
            return
        async with self._handoffs:
            self._pulls_not_asked.discard(shard.number)
            await self._take_over(shard, action, image)

    async def _take_over(self, shard: OwnedShard, action: Pull, image: LogImage) -> None:
        """Asks the owner, then claims. From the answer on nobody serves the shard until the end of this."""
        address = self._view.internal_address(action.owner)
        if address is None or self.draining:
            return
        shard.phase = Phase.CLAIMING
        try:
            answer = await self._peers.request_handoff(address, shard.number, action.above_epoch, self._me)
        except grpc.aio.AioRpcError as error:
            log.warning(
                "handoff_not_answered", shard=shard.number, owner=action.owner, reason=error.code().name
            )
            return
        if answer.outcome not in (peer_pb2.HANDOFF_OUTCOME_HANDED_OVER, peer_pb2.HANDOFF_OUTCOME_NOT_OWNER):
            log.debug("handoff_refused", shard=shard.number, owner=action.owner, reason=answer.message)
            return
        await shard.claim(max(action.above_epoch, answer.shard_epoch), image)

    async def _take_again(self, shard: OwnedShard) -> None:
        """Gives a failed shard up once the nodes have its log again: it is claimed as any other one.

        Until then the log is only read, which raises no epoch and can lose nothing. An older copy of it is
        left alone.
        """
        end = await self._loader.acknowledged(shard.number)
        while end < shard.known_end:
            await asyncio.sleep(_LOOK_AGAIN_S)
            end = await self._loader.acknowledged(shard.number)
        if self.shards.get(shard.number) is shard:
            log.warning("log_is_back", shard=shard.number)
            shard.unload(None)

    def _image(self, shard: int) -> LogImage:
        return self._loader.image(shard, self._shared.faults.quarantine(shard))

    def _pause(self, shard: int) -> None:
        """Before a shard is tried again: twice as long after each failure in a row."""
        failures = self._failures[shard] = self._failures.get(shard, 0) + 1
        pause_ms = min(self._pace.retry_ms << min(failures - 1, 10), self._pace.retry_max_ms)
        not_before_ms = self._shared.faults.not_before_ms(shard)
        self._not_before_ms[shard] = max(self._now_ms() + pause_ms, not_before_ms)

    def _cancel(self, shard: int) -> None:
        task = self._tasks.get(shard)
        if task is not None:
            task.cancel()

    def _check_foreign_owners(self, picture: Picture) -> None:
        """A newer owner by the view is a hint: ask the log whether the claim here is still the last one."""
        for number, shard in tuple(self.shards.items()):
            owner = picture.owners.get(number)
            if owner is None or owner.epoch <= shard.epoch or owner.node_id == picture.me:
                continue
            if shard.phase is Phase.SERVING:
                self._in_background(shard.verify())
            elif shard.phase is Phase.FAILED:
                shard.unload(None)

    def _note_live(self) -> None:
        self.outlook.note_live()
        addresses = self.outlook.addresses()
        if addresses != self._known_addresses:
            self._known_addresses = addresses
            self._in_background(self._peers.keep(addresses))

    def _can_hand_over(self) -> bool:
        """Whether a draining process may still hope for successors: not without its lease, nor alone."""
        return self._lease.may_answer(self._now_ms()) and self.outlook.others_live

    def _announce(self) -> None:
        serving = [(shard.number, shard.epoch) for shard in self.shards.values() if shard.serving]
        self._lease.announce(serving, draining=self.draining)

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _tick_forever(self) -> None:
        while True:
            try:
                self.reconcile()
            except Exception:
                log.exception("reconcile_failed")
            await asyncio.sleep(self._pace.tick_ms / 1000)

    async def _ask_quiet_logs(self) -> None:
        """Finds out about lost claims where nobody writes or reads.

        Nodes that promised to a claimant that died keep a node that lost its data from being filled, until
        the next claim; without this one nobody would make it.
        """
        while True:
            await asyncio.sleep(self._pace.quiet_ms / 1000)
            for shard in tuple(self.shards.values()):
                if shard.phase is Phase.SERVING and not shard.suspended and shard.was_quiet():
                    self._in_background(shard.verify())

    def _now_ms(self) -> int:
        return self._shared.now().boot_ms


def _no(outcome: peer_pb2.HandoffOutcome.ValueType, message: str) -> peer_pb2.RequestHandoffResponse:
    return peer_pb2.RequestHandoffResponse(outcome=outcome, message=message)
