"""People: who somebody is for life, whatever their name is now.

The hub reuses its user ids after a deletion and lets names change, so neither can key storage or uids. A
person has an id, a uid and a slug that are never given to anybody else; only the name moves. A person who was
removed keeps their row without the name, so that whoever takes the name next is somebody new with a directory
of their own.
"""

from __future__ import annotations

import re
import unicodedata
from base64 import b32encode
from dataclasses import dataclass
from hashlib import sha256
from uuid import uuid4

from sqlalchemy import Engine, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from gpulab_hub import names, quotas
from gpulab_hub.database import reading, writing
from gpulab_hub.schema import Person as Row
from gpulab_spawner.errors import LabError, NameRefused
from gpulab_spawner.gate import Person

SLUG_LENGTH = 40
_HASH_LENGTH = 12
_LAST_UID = 2**31 - 2
# All who start for the first time in one moment want the same uid; each round lets one of them pass.
_ROUNDS = 200


def slug_of(name: str, generation: int = 0) -> str:
    """Return the slug of a name: its readable part and 60 bits of a hash of all of it.

    The readable part alone would let `a.b` and `a-b` meet; the hash keeps them apart.

    Args:
        name: The name, as the hub has it.
        generation: How many slugs of this name were given away before.

    Returns:
        At most 40 characters of [a-z0-9-], starting with a letter or digit.
    """
    digest = b32encode(sha256(f"{name}\0{generation}".encode()).digest()).decode("ascii").lower()
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode("ascii").lower()
    readable = re.sub(r"[^a-z0-9]+", "-", plain)[: SLUG_LENGTH - _HASH_LENGTH - 1].strip("-")
    return f"{readable or 'u'}-{digest[:_HASH_LENGTH]}"


def find_person(engine: Engine, name: str) -> Person | None:
    """Return the person who has a name now, None if nobody has."""
    with reading(engine) as connection, Session(connection) as session:
        row = session.scalar(select(Row).where(Row.name == name))
        return _person(row) if row else None


def people_of_lab(engine: Engine) -> dict[str, Person]:
    """Return everybody who has a name now, by their id."""
    with reading(engine) as connection, Session(connection) as session:
        return {row.id: _person(row) for row in session.scalars(select(Row).where(Row.name.is_not(None)))}


def ensure_person(engine: Engine, name: str, now: float, uid_base: int) -> Person:
    """Return the person of a hub name, making their record the first time.

    Safe to call at once from many places.

    Args:
        engine: The lab's own database.
        name: Hub name.
        now: Unix time in seconds.
        uid_base: First uid to give away.

    Raises:
        NameRefused: The lab does not carry the name, such as another spelling of somebody's (not NFC).
    """
    trouble = names.problem(name)
    if trouble:
        raise NameRefused(f"The name {names.shown(name)} is not accepted: {trouble}.")
    for _ in range(_ROUNDS):
        found = find_person(engine, name)
        if found:
            return found
        try:
            return _make(engine, name, now, uid_base)
        except IntegrityError:
            continue
    raise LabError(
        f"No uid could be stored for {names.shown(name)}: others took it {_ROUNDS} times.",
        next_step="Try again in a moment.",
    )


def remove_person(engine: Engine, name: str, now: float) -> bool:
    """Free a name; its person keeps id, uid, slug and files. Return whether anybody had it.

    Limits of their own go: they would be those of whoever gets the name later.
    """
    with writing(engine) as connection:
        gone = connection.execute(
            update(Row).where(Row.name == name).values(name=None, last_name=name, removed_at=now)
        )
        quotas.forget_user(connection, name)
        return bool(gone.rowcount)


@dataclass(frozen=True, slots=True)
class Leaver:
    """Somebody who was removed and whose files may be there still.

    Attributes:
        name: Their last name in the hub.
        slug: Their directory below the storage root.
        uid: Host uid of their files.
        removed_at: Unix time in seconds.
    """

    name: str
    slug: str
    uid: int
    removed_at: float


def leavers(engine: Engine) -> tuple[Leaver, ...]:
    """Return everybody who was removed, the latest first."""
    with reading(engine) as connection, Session(connection) as session:
        gone = select(Row).where(Row.removed_at.is_not(None)).order_by(Row.removed_at.desc(), Row.slug)
        return tuple(
            Leaver(row.last_name, row.slug, row.uid, float(row.removed_at or 0.0))
            for row in session.scalars(gone)
        )


def _make(engine: Engine, name: str, now: float, uid_base: int) -> Person:
    with writing(engine) as connection, Session(connection) as session:
        highest = session.scalar(select(func.max(Row.uid)))
        uid = uid_base if highest is None else max(uid_base, highest + 1)
        if uid > _LAST_UID:
            raise LabError(f"Every uid up to {_LAST_UID} is given away.")
        row = Row(
            id=uuid4().hex, name=name, last_name=name, uid=uid, slug=_free_slug(session, name), created_at=now
        )
        session.add(row)
        session.flush()
        return _person(row)


def _free_slug(session: Session, name: str) -> str:
    generation = 0
    while session.scalar(select(Row.id).where(Row.slug == slug_of(name, generation))):
        generation += 1
    return slug_of(name, generation)


def _person(row: Row) -> Person:
    return Person(id=row.id, name=row.name or row.last_name, uid=row.uid, slug=row.slug)
