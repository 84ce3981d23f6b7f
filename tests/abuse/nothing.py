"""No attack at all: what the machine alone costs the worker.

The other figures mean something only where this one is small.
"""

import asyncio

from abuse.lab import Target, stage


async def attack(target: Target) -> str:
    await asyncio.sleep(4)
    return f"nothing was done to {target.owner}"


if __name__ == "__main__":
    stage(attack)
