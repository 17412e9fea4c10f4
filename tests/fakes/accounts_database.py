"""A lab's database in a file, with its tables, and accounts whose passwords are hashed cheaply."""

from argon2 import PasswordHasher

from gpulab_hub.accounts import Accounts
from gpulab_hub.database import open_database
from gpulab_hub.schema import Base

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def open_new(directory):
    """Return an engine over a new SQLite file with all tables."""
    engine = open_database(f"sqlite:///{directory / 'lab.sqlite'}", create=True)
    Base.metadata.create_all(engine)
    return engine


def cheap_accounts(engine, min_length=10):
    """Return accounts over an engine."""
    return Accounts(engine, min_length, CHEAP)
