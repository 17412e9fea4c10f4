import pytest

from gpulab_hub.roster import Entry, read_roster
from gpulab_spawner.errors import ConfigError


def entries(text):
    return [
        (e.name, e.admin, e.line)
        for e in read_roster(text if isinstance(text, bytes) else text.encode(), "class.csv")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "name,admin\nada,true\nli,\n",
        "ada,true\nli\n",
        "\ufeffname,admin\r\nada,yes\r\nli,no\r\n",
        "admin;name\ntrue;ada\n;li\n",
        '"Name", "Admin"\n Ada , TRUE \n"li",0\n',
    ],
)
def test_the_forms_that_spreadsheets_write(text):
    assert [(name, admin) for name, admin, _ in entries(text)] == [("ada", True), ("li", False)]


def test_lines_are_counted_with_empty_ones():
    assert entries("name\n\nada\n\n\nli\n") == [("ada", False, 3), ("li", False, 6)]


def test_a_name_with_a_comma_or_an_odd_mark_is_quoted():
    assert entries('name\n"ada@example.org"\n-li\n')[1] == ("-li", False, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "class.csv: the file: it names nobody"),
        ("name,admin\n", "it names nobody"),
        ("name,admn\nada,\n", "line 1: the columns are 'name', 'admn'"),
        ("name,name\nada,\n", "line 1: the columns are"),
        ("name\nada\na/b\n", "line 3: The name 'a/b' is not accepted: it holds a slash"),
        ("name\nada\nAda\n", "line 3: 'ada' is on line 2 already"),
        ("name,admin\nada,maybe\n", "line 2: admin is 'maybe'; write true or false"),
        ("name,admin\nada,no,4\n", "line 2: there are more than 2 columns"),
        ("name,admin\n,true\n", "line 2: The name '' is not accepted: it is empty"),
        ('name\n"ada\n', "it is not CSV"),
        (b"name\nada\n\xe9mile\n", "line 3: it is not UTF-8"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text, words):
    with pytest.raises(ConfigError) as caught:
        entries(text)
    assert words in str(caught.value)
    assert str(caught.value).startswith("class.csv: ")


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(ConfigError) as caught:
        entries("name\na/b\nada\nada\n.\n")
    text = str(caught.value)
    assert [line.partition(" The")[0] for line in text.splitlines()] == [
        "class.csv: line 2:",
        "class.csv: line 4: 'ada' is on line 3 already.",
        "class.csv: line 5:",
    ]
    assert text.endswith("Nobody was added.")


def test_an_entry_is_a_value():
    assert Entry("ada") == Entry("ada", False, 0)
