"""How sessions end: after a new password, and when a name passes from one person to the next.

A browser's session with the hub is a cookie that holds the user's `cookie_id`; a new id voids them all. What
a browser got from it for servers and services are tokens that carry the session's id. Tokens that a user made
and those of running servers carry none.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jupyterhub import orm

# The hub makes its user right after the account's; clocks of two machines may differ by this much.
_SLACK_SECONDS = 60.0


def end_sessions(db: Any, user: Any, keep: str | None = None) -> None:
    """End every browser session of a hub user.

    Args:
        db: The hub's database session.
        user: The hub's user.
        keep: Id of a session whose tokens stay; its browser needs the hub's cookie anew.
    """
    user.orm_user.cookie_id = orm.new_token()
    for token in db.query(orm.APIToken).filter_by(user_id=user.orm_user.id):
        if token.session_id and token.session_id != keep:
            db.delete(token)
    for code in db.query(orm.OAuthCode).filter_by(user_id=user.orm_user.id):
        db.delete(code)
    db.commit()


def outlived(user: Any, account_created_at: float) -> bool:
    """Return whether a hub user is older than the account, and so was an earlier account's."""
    created = user.orm_user.created
    if created is None:
        return False
    return bool(created.replace(tzinfo=UTC).timestamp() < account_created_at - _SLACK_SECONDS)


def take_over(db: Any, user: Any) -> None:
    """Let a hub user that outlived its account be the new account's: nothing issued before opens anything."""
    for token in db.query(orm.APIToken).filter_by(user_id=user.orm_user.id):
        db.delete(token)
    user.orm_user.created = datetime.now(UTC).replace(tzinfo=None)
    end_sessions(db, user)
