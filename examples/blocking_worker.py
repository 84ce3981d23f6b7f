"""The same worker for code that blocks: a plain function, a thread per partition, stopped by `is_ending`."""

import muster


def work(p: muster.BlockingPartition) -> None:
    position = p.committed() or 0
    print(f"{p.topic}-{p.number}: on from {position} with token {p.token}", flush=True)
    while not p.wait_ending(0.5):  # the real work goes here
        position += 1
        p.commit(position)
    print(f"{p.topic}-{p.number}: stopped at {position}", flush=True)


if __name__ == "__main__":
    muster.run(work, group="crawlers", topic="sites", partitions=12)
