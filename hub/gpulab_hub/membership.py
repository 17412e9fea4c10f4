"""When a name of the hub changes or goes: account and person change in one transaction.

A person's id, uid and directory are for life. A rename moves the name alone, so that their files and leases
stay theirs; after a removal whoever takes the name is somebody new (`gpulab_hub.people`).
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gpulab_hub import names, people, quotas
from gpulab_hub.database import writing
from gpulab_hub.schema import Account, Invite, Person
from gpulab_spawner.errors import NameRefused
from gpulab_spawner.gate import Person as Member


def rename(engine: Engine, old: str, new: str) -> None:
    """Let whoever has a name have another: account, password, open invitation, person.

    A name that nobody has yet in the lab (they never signed in) changes nothing.

    Args:
        engine: The lab's own database.
        old: Present name.
        new: Name from now on, canonical.

    Raises:
        NameRefused: Somebody has the new name, or the lab does not carry it.
    """
    trouble = names.problem(new)
    if trouble:
        raise NameRefused(f"The name {names.shown(new)} is not accepted: {trouble}.")
    try:
        with writing(engine) as connection:
            _rename_account(connection, old, new)
            connection.execute(update(Person).where(Person.name == old).values(name=new, last_name=new))
            quotas.rename_user(connection, old, new)
    except IntegrityError:
        raise NameRefused(
            f"Somebody of the lab has the name {names.shown(new)} already.",
            next_step="Choose another name; gpulab user list shows those there are.",
        ) from None


def _rename_account(connection: Connection, old: str, new: str) -> None:
    # The name is the key that invitations refer to, so that a new row takes them over from the old one.
    columns = [column for column in Account.__table__.columns if column.name != "name"]
    row = connection.execute(select(*columns).where(Account.name == old)).mappings().one_or_none()
    if row is None:
        return
    connection.execute(insert(Account), {"name": new, **row})
    connection.execute(update(Invite).where(Invite.account == old).values(account=new))
    connection.execute(delete(Account).where(Account.name == old))


def leave(engine: Engine, name: str, now: float) -> Member | None:
    """Remove the account of a name and free the name; files stay. Return whose it was, None if nobody's.

    Args:
        engine: The lab's own database.
        name: The name.
        now: Unix time in seconds.
    """
    person = people.find_person(engine, name)
    with writing(engine) as connection:
        connection.execute(delete(Invite).where(Invite.account == name))
        connection.execute(delete(Account).where(Account.name == name))
        connection.execute(
            update(Person).where(Person.name == name).values(name=None, last_name=name, removed_at=now)
        )
        quotas.forget_user(connection, name)
    return person
