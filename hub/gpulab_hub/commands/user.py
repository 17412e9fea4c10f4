"""`gpulab user`: local accounts and their one-time links."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from sqlalchemy import Engine

from gpulab_hub import names, people, settings
from gpulab_hub.accounts import Accounts, Invitation
from gpulab_hub.commands import emit, json_option, lab_command
from gpulab_hub.database import database_url, open_database
from gpulab_hub.hub_api import HubDown, HubRefused, hub_api
from gpulab_hub.paths import LabPaths
from gpulab_hub.roster import Entry, read_roster, refused
from gpulab_hub.settings import Listen, Settings
from gpulab_spawner.errors import AccountExists, AccountMissing

_UNITS = {"m": 60, "h": 3600, "d": 86400}
_LONGEST = 365 * 86400


class Duration(click.ParamType[float]):
    """A time such as 30m, 12h or 7d, as seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"([0-9]{1,6})([mhd])", str(value))
        seconds = int(match[1]) * _UNITS[match[2]] if match else 0
        if not 0 < seconds <= _LONGEST:
            self.fail(f"{value!r} is not a time like 30m, 12h or 7d, at most 365d", param, ctx)
        return float(seconds)


expires_option = click.option(
    "--expires", type=Duration(), help="How long links are valid: 30m, 12h, 7d. [default: the site's, 7d]"
)


@click.group()
def user() -> None:
    """Local accounts and their one-time links."""


@user.command()
@click.argument("name", required=False)
@click.option("--admin", is_flag=True, help="They look after the lab.")
@click.option(
    "--file",
    "roster",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV with the columns name and admin; all lines or none.",
)
@expires_option
@json_option
@lab_command
def add(
    paths: LabPaths, name: str | None, admin: bool, roster: Path | None, expires: float | None, as_json: bool
) -> None:
    """Add accounts and print the link that sets each one's password.

    A name that starts with a dash goes behind two: gpulab user add -- -name
    """
    if (name is None) == (roster is None):
        raise click.UsageError("Give a NAME or --file.")
    if roster is not None and admin:
        raise click.UsageError("--admin goes with a NAME; a file has a column for it.")
    site = settings.load(paths.config)
    accounts = _accounts(paths, site)
    if roster is not None:
        entries = read_roster(roster.read_bytes(), str(roster))
        _refuse_existing(accounts, entries, str(roster))
    else:
        entries = (Entry(names.canonical(name or ""), admin),)
    now = time.time()
    _print_links(site, accounts.add(entries, now, _expiry(site, expires, now)), as_json)


@user.command()
@click.argument("name")
@expires_option
@json_option
@lab_command
def invite(paths: LabPaths, name: str, expires: float | None, as_json: bool) -> None:
    """Print a new link for an account; links printed before open nothing any more.

    It resets a forgotten password: the old one stays until the link is used.
    """
    site = settings.load(paths.config)
    now = time.time()
    made = _accounts(paths, site).invite(names.canonical(name), now, _expiry(site, expires, now))
    _print_links(site, (made,), as_json)


@user.command("list")
@click.option("--removed", is_flag=True, help="List who was removed, and where their files are.")
@json_option
@lab_command
def list_accounts(paths: LabPaths, removed: bool, as_json: bool) -> None:
    """List the accounts."""
    site = settings.load(paths.config)
    if removed:
        _print_leavers(people.leavers(_engine(paths, site)), as_json)
        return
    rows = _accounts(paths, site).everyone(time.time())
    if as_json:
        emit(
            [
                {
                    "name": row.name,
                    "admin": row.admin,
                    "created_at": row.created_at,
                    "password_set_at": row.password_set_at,
                    "invite_expires_at": row.invite_expires_at,
                }
                for row in rows
            ]
        )
        return
    if not rows:
        click.echo("No accounts yet. `gpulab user add NAME --admin` makes the first.")
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        password = (
            "no password yet" if row.password_set_at is None else f"password {_day(row.password_set_at)}"
        )
        link = f"link open until {_moment(row.invite_expires_at)}" if row.invite_expires_at else ""
        role = "admin" if row.admin else ""
        click.echo(f"{row.name:<{width}}  {role:<5}  {password:<20}  {link}".rstrip())


@user.command()
@click.argument("name")
@json_option
@lab_command
def remove(paths: LabPaths, name: str, as_json: bool) -> None:
    """Remove an account; its home directory stays.

    Whoever gets the name later is somebody new, with a directory of their own.
    """
    site = settings.load(paths.config)
    wanted = names.canonical(name)
    engine = _engine(paths, site)
    person = people.find_person(engine, wanted)
    missing = None
    try:
        Accounts(engine).remove(wanted)
    except AccountMissing as error:
        missing = error
    people.remove_person(engine, wanted, time.time())
    known, hub = _remove_from_hub(paths, site, wanted)
    if missing and not known and person is None:
        raise missing
    home = f"Files stay in {person.slug} below the storage root." if person else "There are no files."
    if as_json:
        emit({"removed": wanted, "slug": person.slug if person else None, "hub": hub})
    else:
        click.echo(f"Removed {wanted}. {hub} {home}")


def _remove_from_hub(paths: LabPaths, site: Settings, name: str) -> tuple[bool, str]:
    """Return whether the hub knew the name, and what became of it in words."""
    try:
        if hub_api(paths, site).delete_user(name):
            return True, "Signed out, and removed from the hub."
        return False, "The hub did not know this user."
    except HubDown as down:
        return False, f"The hub could not be told ({down}); it refuses this user as soon as it runs."
    except HubRefused as refused:
        said = refused.message.rstrip(".")
        return True, f"{said}. It refuses this user already; run the command again in a minute."


def invite_url(listen: Listen, secret: str) -> str:
    """Return the link of an invitation; its secret stands where browsers send it to nobody."""
    return f"{public_url(listen)}/hub/invite#{secret}"


def public_url(listen: Listen) -> str:
    """Return the address that people type, without a slash at its end."""
    if listen.public_url:
        return listen.public_url.rstrip("/")
    # An address for all interfaces is none to type: the machine's own name is.
    host = socket.getfqdn() if listen.address in ("", "0.0.0.0", "::") else listen.address  # noqa: S104
    return f"http://{f'[{host}]' if ':' in host else host}:{listen.port}"


def _refuse_existing(accounts: Accounts, entries: tuple[Entry, ...], source: str) -> None:
    there = accounts.existing(entry.name for entry in entries)
    lines = [(e.line, f"{names.shown(e.name)} has an account already") for e in entries if e.name in there]
    if lines:
        raise AccountExists(str(refused(source, lines)))


def _print_leavers(rows: tuple[people.Leaver, ...], as_json: bool) -> None:
    if as_json:
        emit([asdict(row) for row in rows])
        return
    if not rows:
        click.echo("Nobody was removed.")
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        click.echo(f"{row.name:<{width}}  removed {_day(row.removed_at)}  files: {row.slug}, uid {row.uid}")


def _expiry(site: Settings, expires: float | None, now: float) -> float:
    return now + (site.auth.local.invite_days * 86400 if expires is None else expires)


def _print_links(site: Settings, invitations: tuple[Invitation, ...], as_json: bool) -> None:
    links = [(made, invite_url(site.listen, made.secret)) for made in invitations]
    if as_json:
        emit([{"name": made.name, "url": url, "expires_at": made.expires_at} for made, url in links])
        return
    width = max(len(made.name) for made in invitations)
    for made, url in links:
        click.echo(f"{made.name:<{width}}  {url}")
    until = _moment(invitations[0].expires_at)
    click.echo(f"Each link works once, until {until}. It is shown only now.", err=True)


def _accounts(paths: LabPaths, site: Settings) -> Accounts:
    return Accounts(_engine(paths, site), site.auth.local.password_min_length)


def _engine(paths: LabPaths, site: Settings) -> Engine:
    engine = open_database(database_url(site, paths))
    click.get_current_context().call_on_close(engine.dispose)
    return engine


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
