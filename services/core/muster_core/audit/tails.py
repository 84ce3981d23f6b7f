"""What nodes hold after the acknowledged position, side by side."""

from collections.abc import Iterable, Mapping

from muster_core.audit.invariants import Findings
from muster_core.audit.log_audit import go_on
from muster_core.log.page import Page


def compare_tails(tails: Mapping[int, Iterable[Page]], epoch: int, findings: Findings) -> None:
    """Compares what nodes hold after the acknowledged position; keeps one page of each in memory.

    Nodes may have different ends, of different claims. But an owner never uses a place for other bytes
    (LOG-20), so what two of them hold of one claim is the same, whenever each was read.

    Args:
        tails: number of a node → what it holds there.
        epoch: that of the acknowledged position, which is of the same claim on all of them.
        findings: takes the results, of invariant L6n.
    """
    walks = {node: (entry for page in pages for entry in page.entries()) for node, pages in tails.items()}
    heads = {node: head for node, walk in walks.items() if (head := next(walk, None)) is not None}
    claims = dict.fromkeys(heads, (epoch, b""))  # epoch and, of a later one, the nonce of its Claim
    while len(heads) > 1:
        position = min(head.position for head in heads.values())
        having = [node for node, head in heads.items() if head.position == position]
        held: dict[tuple[int, bytes], dict[tuple[bytes, bytes], list[int]]] = {}
        for node in having:
            head = heads[node]
            if claims[node][0] != position.epoch:
                claims[node] = position.epoch, head.nonce
            held.setdefault(claims[node], {}).setdefault((head.nonce, head.record), []).append(node)
        for contents in held.values():
            who = " and ".join(f"nodes {nodes}" for nodes in contents.values())
            text = f"{who} hold different entries of one claim, after the acknowledged position"
            findings.expect("L6n", len(contents) == 1, position, text)
        go_on(having, walks, heads)
