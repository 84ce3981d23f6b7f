"""What the sentences of causes have in common in both kinds of groups."""

from muster_core.participant import Named


def member_named(member: Named) -> str:
    """A member as its operators know it: `Member m-1 (instance blue) at 10.0.0.9`."""
    name = f"Member {member.member_id}"
    if member.group_instance_id:
        name += f" (instance {member.group_instance_id})"
    if member.host:
        name += f" at {member.host}"
    return name


def with_reason(sentence: str, reason: str) -> str:
    """A sentence that ends with the reason somebody gave in words of their own; empty: nobody gave one."""
    return f"{sentence[:-1]}: {reason.rstrip(' .')}." if reason else sentence
