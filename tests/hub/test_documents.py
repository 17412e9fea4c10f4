import pytest
from pydantic import BaseModel, ConfigDict, Field

from gpulab_hub.documents import read_document
from gpulab_spawner.errors import ConfigError


class Leaf(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    size: int = Field(ge=0)
    kind: str = "plain"


class Tree(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    leaves: tuple[Leaf, ...] = ()
    best: Leaf | None = None
    free: tuple[dict[str, object], ...] = ()
    odd: tuple[int, int] | str = ""


def read(text):
    return read_document(
        text,
        Tree,
        source="tree.yaml",
        holds="a tree",
        a_key="twig",
        accepted={"odd": "Write a name or a pair."},
        as_lists=frozenset({"free"}),
    )


def test_lists_are_tuples_but_for_those_that_stay():
    tree = read("leaves: [{size: 1}]\nfree: [{names: [a, b]}]")
    assert tree.leaves == (Leaf(size=1),)
    assert tree.free == ({"names": ["a", "b"]},)
    assert read("") == Tree()


def test_a_key_may_come_again_in_another_mapping_and_through_a_merge():
    assert read("leaves: [{size: 1}, {size: 1}]").leaves[1].size == 1
    assert read("best: &b {size: 1}\nleaves: [{<<: *b}, {<<: *b, kind: x}]").leaves[1].kind == "x"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("leaves: [", "tree.yaml: line 1, column 10: "),
        ("best: {size: 1, size: 2}", "tree.yaml: line 1, column 17: the key size is written twice. Fix"),
        ("a\n", "tree.yaml: the file: it holds a text, not a tree."),
        ("2026-11-30", "tree.yaml: the file: it holds a date, not a tree."),
        ("lefs: 1", "tree.yaml: lefs: there is no such twig. Known here: leaves, best, free, odd."),
        ("leaves: [{siz: 1}]", "tree.yaml: leaves.0.siz: there is no such twig. Known here: size, kind."),
        ("best: {siz: 1}", "tree.yaml: best.siz: there is no such twig. Known here: size, kind."),
        ("best: {}", "tree.yaml: best.size: it is missing."),
        ("best: {size: -1}", "tree.yaml: best.size: -1 is not accepted: Input should be greater"),
        ("best: {size: 1, kind: 5}", "tree.yaml: best.kind: 5 is not accepted"),
        ("odd: [1]", "tree.yaml: odd: it is not accepted. Write a name or a pair."),
    ],
)
def test_what_is_wrong_is_named_by_file_key_and_value(text, words):
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value).startswith(words)


def test_a_long_value_is_cut():
    with pytest.raises(ConfigError) as caught:
        read(f"best: {{size: {'x' * 500}}}")
    assert "…" in str(caught.value)
    assert len(str(caught.value)) < 250
