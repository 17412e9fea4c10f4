"""`gpulab quota`: limits for everyone, for groups and for users."""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterable
from datetime import date, datetime, tzinfo
from fractions import Fraction
from typing import Any

import click
from sqlalchemy import Engine

from gpulab_hub import extra_hours, people, quotas
from gpulab_hub import settings as site
from gpulab_hub.accounting.budgets import Extra
from gpulab_hub.accounting.limits import HOURS, Scope, parse_scope, parse_value, read_rules, show_value
from gpulab_hub.accounting.periods import day_of
from gpulab_hub.accounting.quota_use import Used, uses
from gpulab_hub.accounting.quota_words import say_used
from gpulab_hub.audit import Edit
from gpulab_hub.commands import emit, json_option, lab_command, open_database
from gpulab_hub.commands.audit import words as audit_words
from gpulab_hub.database import reading
from gpulab_hub.hub_api import HubDown, HubRefused, hub_api
from gpulab_hub.ledger import Ledger
from gpulab_hub.paths import LabPaths
from gpulab_hub.settings import Settings
from gpulab_hub.when import date_and_time
from gpulab_hub.zone import site_zone


class Target(click.ParamType[Scope]):
    """`everyone`, `group:NAME` or `user:NAME`."""

    name = "who"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Scope:
        """Return the scope."""
        if isinstance(value, Scope):
            return value
        try:
            return parse_scope(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Pair(click.ParamType[tuple[str, str]]):
    """A limit and its value, `gpus=2`."""

    name = "limit=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return field and value."""
        if isinstance(value, tuple):
            return value
        field, equals, text = str(value).partition("=")
        if not equals:
            self.fail(f"{value!r} is none: write LIMIT=VALUE, such as gpus=2", param, ctx)
        return field.strip(), text.strip()


reason_option = click.option("--reason", required=True, help="Why, for the audit log.")


@click.group()
def quota() -> None:
    """Limits for everyone, for groups and for users.

    WHO is everyone, group:NAME or user:NAME. What is set for a user holds for them; else the most generous of
    what is set for their groups; else what is set for everyone; each limit for itself. A limit of a group is
    for each of its members.
    """


@quota.command("set")
@click.argument("who", type=Target())
@click.argument("pairs", metavar="LIMIT=VALUE...", type=Pair(), nargs=-1, required=True)
@reason_option
@lab_command
def set_(paths: LabPaths, who: Scope, pairs: tuple[tuple[str, str], ...], reason: str) -> None:
    """Set limits; unlimited is a value, and lifts what holds for everyone.

    \b
    gpus, slices, slices.1g.10gb   whole GPUs, slices, slices of a MIG profile at once: a number
    units                          GPUs at once, a slice counted by its part: 2, 0.5, 3/7
    servers, memory, cpus          servers, their host memory (64G) and cores (8) at once
    longest                        how long a server may run: 90m, 8h, 2d
    hours.day, .week, .month       GPU-hours by the calendar: a number
    hours.7d                       GPU-hours of the last 7 days, today included
    hours.NAME:FIRST..LAST         GPU-hours of a term: hours.winter:2026-10-01..2027-03-31
    profiles, shapes               what may be started and asked for: names with commas between
    priority                       who comes first where people wait: -100 to 100
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    _change(paths, who, dict(pairs), reason)


@quota.command()
@click.argument("who", type=Target())
@click.argument("limits", metavar="LIMIT...", nargs=-1, required=True)
@reason_option
@lab_command
def unset(paths: LabPaths, who: Scope, limits: tuple[str, ...], reason: str) -> None:
    """Take limits back: what is set elsewhere holds again."""
    _change(paths, who, dict.fromkeys(limits), reason)


@quota.command()
@click.argument("user")
@click.argument("hours")
@click.option("--until", required=True, type=click.DateTime(["%Y-%m-%d"]), help="Their last day.")
@reason_option
@lab_command
def extra(paths: LabPaths, user: str, hours: str, until: datetime, reason: str) -> None:
    """Grant a user GPU-hours once, from today until a day; they are used before the budgets are."""
    try:
        amount = parse_value(f"{HOURS}day", hours)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="HOURS") from error
    if not isinstance(amount, int | Fraction):
        raise click.BadParameter("extra hours are a number", param_hint="HOURS")
    settings, now = site.load(paths.config), time.time()
    days = day_of(now, site_zone(settings)), until.date()
    with Ledger(open_database(paths)).turn() as turn:
        entry = extra_hours.grant(turn, user, Extra(Fraction(amount), *days), _edit(reason, now))
    click.echo(audit_words(entry))


@quota.command()
@click.argument("who", type=Target(), required=False)
@click.option("--groups", help="Groups of the user, with commas between; without it the hub is asked.")
@json_option
@lab_command
def show(paths: LabPaths, who: Scope | None, groups: str | None, as_json: bool) -> None:
    """Show what is set; of a user what holds, where it comes from and what is used."""
    settings, database = site.load(paths.config), open_database(paths)
    if who is not None and who.kind == "user":
        member, trouble = _groups(paths, settings, who.name, groups)
        _show_user(database, (who.name, member), site_zone(settings), as_json=as_json)
    else:
        _show_set(database, who, site_zone(settings), as_json=as_json)
        trouble = ""
    if trouble:
        click.echo(trouble, err=True)
    with reading(database) as connection:
        for each in quotas.differences(connection, read_rules(settings.limits)):
            click.echo(f"{each.words()}. The database holds.", err=True)


def _change(paths: LabPaths, who: Scope, values: dict[str, str | None], reason: str) -> None:
    with Ledger(open_database(paths)).turn() as turn:
        done = quotas.change(turn, who, values, _edit(reason, time.time()))
    for entry in done:
        click.echo(audit_words(entry))
    if not done:
        click.echo("It was so already.")


def _edit(reason: str, now: float) -> Edit:
    return Edit(f"{getpass.getuser()} (on the host)", now, reason)


def _groups(paths: LabPaths, settings: Settings, user: str, given: str | None) -> tuple[tuple[str, ...], str]:
    """Return the groups of a user, and why they are not known."""
    if given is not None:
        return tuple(each.strip() for each in given.split(",") if each.strip()), ""
    try:
        return hub_api(paths, settings).groups().get(user, ()), ""
    except (HubDown, HubRefused) as error:
        return (), f"The groups of {user} are not known ({error}); name them with --groups."


def _show_set(database: Engine, who: Scope | None, zone: tzinfo, *, as_json: bool) -> None:
    with reading(database) as connection:
        found = quotas.settings(connection, who)
    if as_json:
        emit([_set_json(each) for each in found])
        return
    if not found:
        click.echo("No limits are set." if who is None else f"Nothing is set for {who}.")
    width = max((len(f"{each.scope} {each.field}") for each in found), default=0)
    for each in found:
        name = f"{each.scope} {each.field}"
        click.echo(
            f"{name:<{width}}  {each.value}  (set by {each.set_by}, {date_and_time(each.set_at, zone)})"
        )


def _set_json(each: quotas.Setting) -> dict[str, object]:
    who = {"scope": each.scope.kind, "name": each.scope.name}
    return who | {"limit": each.field, "value": each.value, "set_by": each.set_by, "set_at": each.set_at}


def _show_user(database: Engine, who: tuple[str, tuple[str, ...]], zone: tzinfo, *, as_json: bool) -> None:
    user, groups = who
    person, now = people.find_person(database, user), time.time()
    standing = Ledger(database).standing()
    with reading(database) as connection:
        limits = quotas.effective(connection, standing, user, groups)
        used = quotas.usage(connection, standing, (person.id if person else None, user), limits, now, zone)
        granted = extra_hours.of_user(connection, user)
    found, today = uses(limits, used, now, zone), day_of(now, zone)
    if as_json:
        extras = [_extra_json(each) for each in granted]
        emit({"user": user, "groups": list(groups), "limits": [used_json(e) for e in found], "extra": extras})
        return
    click.echo(f"{user}, in " + (f"groups {', '.join(groups)}" if groups else "no group"))
    for line in _lines(found, user):
        click.echo(f"  {line}")
    if not found:
        click.echo("  Nothing is limited.")
    for each in granted:
        if each.extra.last >= today:
            words = f"{float(each.extra.hours):g} extra GPU-hours until {each.extra.last}"
            click.echo(f"  {words}  ({each.reason}; {each.by})")


def _lines(found: Iterable[Used], user: str) -> list[str]:
    rows = [(each.limit, say_used(each), each.bound.source.words(user)) for each in found]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"{name:<{widths[0]}}  {used:<{widths[1]}}  {source}" for name, used, source in rows]


def used_json(each: Used) -> dict[str, object]:
    """Return a limit of a user with its use as JSON types."""
    return {
        "limit": each.limit,
        "value": show_value(each.limit, each.bound.value),
        "scope": each.bound.source.kind,
        "names": list(each.bound.source.names),
        "used": None if each.used is None else round(float(each.used), 4),
    }


def _extra_json(each: extra_hours.Grant) -> dict[str, object]:
    span: dict[str, date] = {"first_day": each.extra.first, "last_day": each.extra.last}
    days = {name: day.isoformat() for name, day in span.items()}
    return {"hours": float(each.extra.hours), **days, "by": each.by, "at": each.at, "reason": each.reason}
