"""Limits in the lab's database: read for decisions, changed in a turn of the ledger, each change audited.

The database is the truth. The `limits` of gpulab.yaml are taken over once, while nobody has set any; from
then on a file that says otherwise is told of (`differences`) and changes nothing.

A change needs the ledger's turn, as a grant does, so a grant is decided by the limits before it or by those
after it, and never by a mixture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, tzinfo

from sqlalchemy import Connection, and_, bindparam, delete, exists, insert, or_, select, update

from gpulab_hub import audit, extra_hours, ledger
from gpulab_hub.accounting.budgets import DaySums
from gpulab_hub.accounting.limits import (
    EVERYONE,
    Effective,
    Limits,
    Scope,
    ScopeKind,
    Value,
    combine,
    parse_value,
    show_value,
)
from gpulab_hub.accounting.periods import day_of
from gpulab_hub.accounting.quota import Server, Usage, budgets_of
from gpulab_hub.audit import Edit, Entry
from gpulab_hub.ledger import Turn
from gpulab_hub.schema import AuditRow, GpuDay, LimitRow, Person
from gpulab_hub.standing import Past, Standing
from gpulab_spawner.errors import LimitRefused, Refusal

SET, UNSET, SEEDED = "quota set", "quota unset", "quota from file"
FILE = "gpulab.yaml"

Rules = Mapping[Scope, Mapping[str, Value]]
"""What is set: scope to field to value."""


class LimitUnreadable(Refusal):
    """The database holds a limit that this release cannot read; nothing is granted past it."""

    code = "limit_unreadable"
    status = 500


@dataclass(frozen=True, slots=True)
class Setting:
    """A limit as it is stored.

    Attributes:
        scope: For whom.
        field: Its field.
        value: Its value, as it is written.
        set_by: Who set it.
        set_at: When, in Unix seconds.
    """

    scope: Scope
    field: str
    value: str
    set_by: str
    set_at: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the file and the database disagree.

    Attributes:
        scope: For whom.
        field: The field.
        file: What the file says.
        database: What holds, None for nothing.
    """

    scope: Scope
    field: str
    file: str
    database: str | None

    def words(self) -> str:
        """Return it as a sentence's part: `everyone gpus: the file says 2, the database 1`."""
        holds = "nothing" if self.database is None else self.database
        return f"{self.scope} {self.field}: {FILE} says {self.file}, the database {holds}"


def settings(connection: Connection, scope: Scope | None = None) -> list[Setting]:
    """Return what is set, or what is set for one scope."""
    wanted = select(LimitRow).order_by(LimitRow.scope, LimitRow.name, LimitRow.field)
    if scope is not None:
        wanted = wanted.where(LimitRow.scope == scope.kind, LimitRow.name == scope.name)
    rows = connection.execute(wanted.with_only_columns(*_STORED))
    return [Setting(Scope(_kind(row[0]), row[1]), row[2], row[3], row[4], row[5]) for row in rows]


_STORED = (LimitRow.scope, LimitRow.name, LimitRow.field, LimitRow.value, LimitRow.set_by, LimitRow.set_at)


def effective(connection: Connection, standing: Standing, user: str, groups: Iterable[str]) -> Effective:
    """Return what holds for a user.

    Args:
        connection: A transaction.
        standing: What is known as of the same transaction; it keeps what is read.
        user: Their hub name.
        groups: Hub groups that they are in.

    Raises:
        LimitUnreadable: One of their limits cannot be read.
    """
    key = (user, tuple(sorted(set(groups))))
    found = standing.limits.get(key)
    if found is None:
        found = standing.limits[key] = _effective(connection, *key)
    return found


_MINE = select(LimitRow.scope, LimitRow.name, LimitRow.field, LimitRow.value).where(
    or_(
        LimitRow.scope == "everyone",
        and_(LimitRow.scope == "user", LimitRow.name == bindparam("user")),
        and_(LimitRow.scope == "group", LimitRow.name.in_(bindparam("groups", expanding=True))),
    )
)


def _effective(connection: Connection, user: str, groups: Sequence[str]) -> Effective:
    found: dict[Scope, dict[str, Value]] = {}
    for kind, name, field, text in connection.execute(_MINE, {"user": user, "groups": groups}):
        found.setdefault(Scope(_kind(kind), name), {})[field] = _read(field, text)
    return combine(
        Limits(found.get(EVERYONE, {})),
        {name: Limits(found[Scope("group", name)]) for name in groups if Scope("group", name) in found},
        Limits(found.get(Scope("user", user), {})),
        user,
    )


def usage(
    connection: Connection,
    standing: Standing,
    person: tuple[str | None, str],
    limits: Effective,
    now: float,
    zone: tzinfo,
) -> Usage:
    """Return what a person uses and has used, as far as their limits ask for it.

    Args:
        connection: A transaction.
        standing: What open leases hold, as of the same transaction; it keeps what is read.
        person: Id and hub name of the person; no id for somebody who never started a server.
        limits: What holds for them.
        now: Unix time in seconds.
        zone: The site's time zone.
    """
    person_id, user = person
    leases = (standing.leases[each] for each in standing.of_person.get(person_id or "", ()))
    servers = tuple(Server(lease.holds, lease.opened_at, lease.ends_at) for lease in leases)
    first = _first_day(limits, day_of(now, zone))
    if first is None or person_id is None:
        return Usage(servers)
    past = standing.pasts.get(person_id)
    if past is None or past.first > first:
        past = standing.pasts[person_id] = _past(connection, person_id, user, first)
    return Usage(servers, past.days, past.extras)


_DAYS = select(GpuDay.day, GpuDay.gpu_seconds).where(
    GpuDay.person_id == bindparam("person"), GpuDay.day >= bindparam("first")
)


def _past(connection: Connection, person_id: str, user: str, first: date) -> Past:
    granted, first = extra_hours.reaching(extra_hours.of_user(connection, user), first)
    rows = connection.execute(_DAYS, {"person": person_id, "first": first.isoformat()})
    days = DaySums.of({date.fromisoformat(day): seconds for day, seconds in rows})
    return Past(first, days, tuple(each.extra for each in granted))


def person_of(connection: Connection, user: str) -> str | None:
    """Return the id of the person who has a hub name, None for somebody who never started a server."""
    return connection.execute(select(Person.id).where(Person.name == user)).scalar_one_or_none()


def change(turn: Turn, scope: Scope, values: Mapping[str, str | None], edit: Edit) -> list[Entry]:
    """Set limits of a scope, or unset those whose value is None; return what changed.

    Raises:
        LimitRefused: There is no such field, or it takes no such value; nothing was changed.
    """
    wanted = {field: None if text is None else _written(field, text) for field, text in values.items()}
    there = {each.field: each.value for each in settings(turn.connection, scope)}
    done = []
    for field, text in wanted.items():
        before = there.get(field)
        if before == text:
            continue
        _put(turn.connection, scope, field, text, edit)
        action = UNSET if text is None else SET
        entry = Entry(edit.at, edit.actor, action, f"{scope} {field}", before, text, edit.reason)
        audit.record(turn.connection, entry)
        done.append(entry)
    turn.changed = turn.changed or bool(done)
    turn.standing.limits.clear()
    return done


def seed(turn: Turn, rules: Rules, at: float) -> bool:
    """Take over the limits of the file if nobody has set any yet; return whether that was done."""
    if not any(rules.values()) or turn.connection.execute(_EVER_SET).scalar():
        return False
    edit = Edit(FILE, at, "the first limits of this lab")
    for scope, fields in rules.items():
        for field, value in fields.items():
            text = show_value(field, value)
            _put(turn.connection, scope, field, text, edit)
            entry = Entry(at, FILE, SEEDED, f"{scope} {field}", None, text, edit.reason)
            audit.record(turn.connection, entry)
    turn.changed = True
    turn.standing.limits.clear()
    return True


_EVER_SET = select(exists().where(AuditRow.action.in_((SET, UNSET, SEEDED))))


def differences(connection: Connection, rules: Rules) -> list[Difference]:
    """Return where the file says otherwise than the database; what only the database has is no difference."""
    stored = {(each.scope, each.field): each.value for each in settings(connection)}
    return [
        Difference(scope, field, text, stored.get((scope, field)))
        for scope, fields in sorted(rules.items())
        for field, value in sorted(fields.items())
        if (text := show_value(field, value)) != stored.get((scope, field))
    ]


def rename_user(connection: Connection, old: str, new: str) -> None:
    """Let what is set for a user go with their new name; what was set for that name before goes."""
    forget_user(connection, new)
    mine = and_(LimitRow.scope == "user", LimitRow.name == old)
    connection.execute(update(LimitRow).where(mine).values(name=new))
    extra_hours.rename_user(connection, old, new)
    ledger.outdate(connection)


def forget_user(connection: Connection, user: str) -> None:
    """Unset what is set for a user: whoever gets the name later is somebody else. The audit log keeps it."""
    connection.execute(delete(LimitRow).where(LimitRow.scope == "user", LimitRow.name == user))
    extra_hours.forget_user(connection, user)
    ledger.outdate(connection)


def _put(connection: Connection, scope: Scope, field: str, text: str | None, edit: Edit) -> None:
    key = (LimitRow.scope == scope.kind, LimitRow.name == scope.name, LimitRow.field == field)
    connection.execute(delete(LimitRow).where(*key))
    if text is not None:
        row = {"scope": scope.kind, "name": scope.name, "field": field, "value": text}
        connection.execute(insert(LimitRow), row | {"set_by": edit.actor, "set_at": edit.at})


def _written(field: str, text: str) -> str:
    try:
        return show_value(field, parse_value(field, text))
    except ValueError as error:
        raise LimitRefused(
            f"{field[:60]} cannot be set to {text[:60]!r}: {error}.",
            next_step="`gpulab quota set --help` lists the limits and how they are written.",
            details={"field": field[:60], "value": text[:60]},
        ) from error


def _read(field: str, text: str) -> Value:
    try:
        return parse_value(field, text)
    except ValueError as error:
        raise LimitUnreadable(
            f"The limit {field} = {text} in the lab's database cannot be read: {error}.",
            next_step="An admin must set it anew (gpulab quota).",
        ) from error


def _kind(text: str) -> ScopeKind:
    kinds: Sequence[ScopeKind] = ("everyone", "group", "user")
    return next(kind for kind in kinds if kind == text)


def _first_day(limits: Effective, today: date) -> date | None:
    """Return the first day that a budget of a person reaches back to, None where they have no budget."""
    found = []
    for budget in budgets_of(limits):
        window = budget.period.window(today)
        # A term that has not begun yet is reached by servers that run into it.
        found.append(today if window is None else window.first)
    return min(found, default=None)
