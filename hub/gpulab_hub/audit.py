"""The audit log: who changed what, when and why. The one way into it, for every part of the lab.

An entry is written in the transaction of the change that it tells of, so there is neither without the other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import Connection, insert, select

from gpulab_hub.schema import AuditRow

_REASON_LENGTH = 500


@dataclass(frozen=True, slots=True)
class Entry:
    """One action.

    Attributes:
        at: Unix time in seconds.
        actor: Who did it: a hub name, or `NAME (on the host)` of a user of the machine.
        action: What was done, in a word or two that stay the same: `quota set`.
        subject: What it was done to: `group:vision gpus`.
        before: What was there, None for nothing.
        after: What is there now, None for nothing.
        reason: Why, in the actor's words.
    """

    at: float
    actor: str
    action: str
    subject: str
    before: str | None = None
    after: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """Who changes something, when and why; the attributes are an entry's."""

    actor: str
    at: float
    reason: str = ""


def record(connection: Connection, entry: Entry) -> None:
    """Write an entry."""
    row = asdict(entry) | {"reason": entry.reason[:_REASON_LENGTH]}
    connection.execute(insert(AuditRow), row)


def entries(
    connection: Connection, *, subject: str | None = None, limit: int = 100, offset: int = 0
) -> list[Entry]:
    """Return entries, the newest first.

    Args:
        connection: A transaction.
        subject: Only of what is called so, or begins so, such as `group:vision`.
        limit: How many at most.
        offset: How many to leave out.
    """
    wanted = select(
        AuditRow.at,
        AuditRow.actor,
        AuditRow.action,
        AuditRow.subject,
        AuditRow.before,
        AuditRow.after,
        AuditRow.reason,
    )
    if subject is not None:
        wanted = wanted.where(AuditRow.subject.startswith(subject, autoescape=True))
    newest = wanted.order_by(AuditRow.id.desc()).limit(limit).offset(offset)
    return [Entry(*row) for row in connection.execute(newest)]
