from types import SimpleNamespace

import pytest
from jupyterhub import orm

from gpulab_hub.signin.sessions import end_sessions, outlived, take_over


@pytest.fixture
def db():
    session = orm.new_session_factory("sqlite:///:memory:")()
    yield session
    session.close()
    session.get_bind().dispose()


@pytest.fixture
def user(db):
    """A hub user with a token of two sessions, one of their own making and one of a server."""
    ada = orm.User(name="ada")
    db.add(ada)
    db.add(orm.OAuthClient(identifier="jupyterhub"))
    db.commit()
    for note, session in (("here", "s1"), ("there", "s2"), ("mine", None), ("Server at /user/ada/", None)):
        orm.APIToken.new(user=ada, note=note, session_id=session)
    return SimpleNamespace(name="ada", orm_user=ada)


def notes(db):
    return {token.note for token in db.query(orm.APIToken)}


def test_ending_sessions_leaves_what_is_no_session(db, user):
    before = user.orm_user.cookie_id
    end_sessions(db, user, keep="s1")
    assert user.orm_user.cookie_id != before
    assert notes(db) == {"here", "mine", "Server at /user/ada/"}
    end_sessions(db, user)
    assert notes(db) == {"mine", "Server at /user/ada/"}


def test_an_heir_of_a_name_gets_no_token(db, user):
    created = user.orm_user.created.timestamp()
    assert outlived(user, created + 1e6)
    take_over(db, user)
    assert notes(db) == set()
    assert not outlived(user, created)


def test_a_hub_user_made_with_the_account_did_not_outlive_it(db, user):
    from datetime import UTC

    created = user.orm_user.created.replace(tzinfo=UTC).timestamp()
    assert not outlived(user, created)
    assert not outlived(user, created + 30)
    assert outlived(user, created + 61)
