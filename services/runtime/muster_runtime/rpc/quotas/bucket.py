"""A rate with a burst: a bucket that fills by itself and from which each call takes."""

_ONE = 1 - 1e-6
"""As sums of fractions are."""


class Bucket:
    """So much a second, and so much at once after a quiet time.

    Whoever finds one in it may take more than there is: the next ones wait until that is paid back. So a
    request that is larger than the burst is served all the same, and the rate holds in the long run.

    Args:
        rate_per_s: what comes in; above 0.
        burst: what there is at most.
        now_s: the monotonic clock.
        left: what is in it; as much as there may be if absent.
    """

    __slots__ = ("_at_s", "_left", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float, now_s: float, left: float | None = None) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._left = burst if left is None else left
        self._at_s = now_s

    def take(self, amount: float, now_s: float) -> float:
        """Takes an amount; returns 0, or the seconds after which one more may be taken."""
        left = self._left + (now_s - self._at_s) * self.rate_per_s
        self._at_s = now_s
        if left > self.burst:
            left = self.burst
        if left >= _ONE:
            self._left = left - amount
            return 0
        self._left = left
        return (1 - left) / self.rate_per_s

    def owe(self, amount: float) -> None:
        """Takes an amount that is not there: it has to come in before anything else is given."""
        self._left -= amount

    def pay(self, amount: float, now_s: float) -> float:
        """Takes what was used already, as far as no more is owed then than there may be at once.

        Returns:
            As `take`.
        """
        self.take(0, now_s)
        self._left = min(self._left, max(self._left - amount, -self.burst))
        return self.take(0, now_s)

    def deep_debt_s(self, now_s: float) -> float:
        """Seconds until no more is owed than there may be at once; 0: it is not."""
        owed = -(self._left + (now_s - self._at_s) * self.rate_per_s)
        return max(0.0, (owed - self.burst) / self.rate_per_s)

    def change(self, rate_per_s: float, burst: float) -> None:
        """Gives it another rate from now on; what is above the burst is lost."""
        self.rate_per_s = rate_per_s
        self.burst = burst

    def is_full(self, now_s: float) -> bool:
        """Whether it has nothing to remember."""
        return self._left + (now_s - self._at_s) * self.rate_per_s >= self.burst
