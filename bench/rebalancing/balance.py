"""How many partitions have to move."""

from collections.abc import Mapping


def fewest_moves(shares: Mapping[str, int], members: int) -> int:
    """Partitions that have to change owner until shares differ by one at most, all with equal subscriptions.

    Args:
        shares: how many each member has now that stays.
        members: how many there are afterwards, at least as many.
    """
    total = sum(shares.values())
    least, extras = divmod(total, members)
    kept = 0
    for share in sorted(shares.values(), reverse=True):
        has_extra = extras > 0 and share > least
        kept += min(share, least + has_extra)
        extras -= has_extra
    return total - kept
