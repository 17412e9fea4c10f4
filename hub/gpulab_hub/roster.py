"""A class list: the CSV file of `gpulab user add --file`, checked whole before anybody is added.

One name a line; with a header, the columns `name` and, if there, `admin` (true or false). Spreadsheets'
habits are fine: a byte order mark, CRLF, quotes, empty lines, semicolons between columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

from gpulab_hub import names
from gpulab_spawner.errors import ConfigError, LabError, NameRefused

_COLUMNS = ("name", "admin")
_TRUTH = {"": False, "false": False, "no": False, "0": False, "true": True, "yes": True, "1": True}


@dataclass(frozen=True, slots=True)
class Entry:
    """One account to make.

    Attributes:
        name: Canonical name.
        admin: Whether they look after the lab.
        line: Line of the file, for messages.
    """

    name: str
    admin: bool = False
    line: int = 0


def read_roster(data: bytes, source: str) -> tuple[Entry, ...]:
    """Return the accounts that a file lists.

    Args:
        data: Content of the file, UTF-8.
        source: Its name, for messages.

    Raises:
        ConfigError: Everything that is wrong, each with its line.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"line {line}", "it is not UTF-8", source=source, next_step="Save the file as UTF-8."
        ) from None
    entries, troubles = [], []
    first_line: dict[str, int] = {}
    for line, cells, columns in _rows(text, source):
        try:
            entry = _entry(line, cells, columns)
        except LabError as error:
            troubles.append((line, error.message))
            continue
        if entry.name in first_line:
            troubles.append((line, f"{names.shown(entry.name)} is on line {first_line[entry.name]} already"))
            continue
        first_line[entry.name] = line
        entries.append(entry)
    if troubles:
        raise refused(source, troubles)
    if not entries:
        raise ConfigError("the file", "it names nobody", source=source)
    return tuple(entries)


def refused(source: str, troubles: list[tuple[int, str]]) -> ConfigError:
    """Return one error of many lines; nobody was added."""
    (line, first), rest = troubles[0], troubles[1:]
    more = "".join(f"\n{source}: line {number}: {trouble.rstrip('.')}." for number, trouble in rest)
    return ConfigError(
        f"line {line}", f"{first.rstrip('.')}.{more}", source=source, next_step="Nobody was added."
    )


def _rows(text: str, source: str) -> Iterator[tuple[int, list[str], tuple[str, ...]]]:
    head = text.partition("\n")[0]
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=";" if ";" in head else ",",
        skipinitialspace=True,
        strict=True,
    )
    columns: tuple[str, ...] | None = None
    try:
        for cells in reader:
            line = reader.line_num
            # Spaces at the ends of a cell are the spreadsheet's; inside a name they count.
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            if columns is None:
                columns = _header(line, cells, source)
                if columns:
                    continue
                columns = _COLUMNS
            yield line, cells, columns
    except csv.Error as error:
        raise ConfigError(f"line {reader.line_num}", f"it is not CSV: {error}", source=source) from None


def _header(line: int, cells: list[str], source: str) -> tuple[str, ...]:
    """Return the columns if the first row is a header, else nothing."""
    columns = tuple(cell.lower() for cell in cells)
    if "name" not in columns:
        return ()
    unknown = [cell for cell in columns if cell not in _COLUMNS]
    if unknown or len(set(columns)) != len(columns):
        raise ConfigError(
            f"line {line}",
            f"the columns are {', '.join(map(repr, columns))}",
            source=source,
            next_step="Known columns: name, admin; each once.",
        )
    return columns


def _entry(line: int, cells: list[str], columns: tuple[str, ...]) -> Entry:
    extra = [cell for cell in cells[len(columns) :] if cell]
    if extra:
        raise NameRefused(f"there are more than {len(columns)} columns")
    row = dict(zip(columns, cells, strict=False))
    admin = row.get("admin", "").lower()
    if admin not in _TRUTH:
        raise NameRefused(f"admin is {names.shown(row['admin'])}; write true or false")
    return Entry(names.canonical(row.get("name", "")), _TRUTH[admin], line)
