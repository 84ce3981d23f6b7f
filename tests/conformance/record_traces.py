"""Records what a real Kafka broker answers to random scripts of group calls.

Each script runs twice, in a new group each time, and is kept only if both runs gave the same answers. The
broker is that of `bench/peers/kafka/up single`.

    ./x record-traces --broker 127.0.0.1:19201 --count 300 --seed 1 --out traces.json
    ./x conformance --traces traces.json
"""

import argparse
import asyncio
import sys
import uuid
from pathlib import Path

from conformance import traces, traces_kafka, traces_live, traces_random
from conformance.traces import Answers, Script

_SETTLE_S = 0.2


async def _record(broker: traces_kafka.KafkaBroker, script: Script) -> Script | None:
    first, second = await _play(broker, script), await _play(broker, script)
    return Script(script.name, script.steps, first) if first == second else None


async def _play(broker: traces_kafka.KafkaBroker, script: Script) -> list[Answers]:
    loop = asyncio.get_running_loop()
    until = loop.time()

    async def settle(number: int, _: traces_live.OpenCalls) -> None:
        nonlocal until
        step = script.steps[number]
        until += _SETTLE_S + (step.argument / 1000 if step.operation == "wait" else 0)
        await asyncio.sleep(until - loop.time())

    return await traces_live.play(script, f"recorded-{uuid.uuid4()}", broker.call, settle)


async def record(arguments: argparse.Namespace) -> int:
    """Records scripts, several at a time; returns the exit code."""
    host, _, port = arguments.broker.rpartition(":")
    broker = traces_kafka.KafkaBroker(host, int(port))
    await broker.prepare("g")
    room = asyncio.Semaphore(arguments.together)

    async def one(script: Script) -> Script | None:
        async with room:
            return await _record(broker, script)

    kinds = arguments.kinds.split(",")
    scripts = [
        traces_random.script(arguments.seed + number, kinds[number % len(kinds)])
        for number in range(arguments.count)
    ]
    recorded = await asyncio.gather(*map(one, scripts))
    await broker.close()
    kept = [script for script in recorded if script is not None]
    traces.save(arguments.out, kept)
    print(f"{len(kept)} of {len(scripts)} scripts were answered twice in the same way: {arguments.out}")
    return 0


def main() -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="./x record-traces", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--broker", required=True, metavar="HOST:PORT", help="a Kafka broker")
    parser.add_argument("--count", type=int, default=100, help="how many scripts")
    parser.add_argument("--seed", type=int, default=1, help="of the first script")
    parser.add_argument("--kinds", default=",".join(traces_random.KINDS), help="sorts of scripts")
    parser.add_argument("--together", type=int, default=30, help="how many scripts run at a time")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where they go")
    return asyncio.run(record(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
