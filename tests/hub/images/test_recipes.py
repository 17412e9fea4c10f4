import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab_hub.images.recipes import (
    ContextFile,
    fingerprint,
    pack,
    read_recipe,
    recipe_names,
    recipes_directory,
)
from gpulab_spawner.errors import ConfigError

names = st.text("abc/.", min_size=1, max_size=8)
contexts = st.dictionaries(names, st.builds(ContextFile, st.binary(max_size=9), st.booleans()), max_size=5)


def test_the_checkouts_own_recipes_are_found():
    directory = recipes_directory()
    assert directory == Path(__file__).parents[3] / "images"
    assert "base" in recipe_names(directory)


def test_an_installed_wheel_carries_them_beside_the_module(tmp_path):
    assert recipes_directory(tmp_path / "lib/gpulab_hub/images") == tmp_path / "lib/gpulab_hub/images/recipes"


def test_a_context_holds_what_the_build_needs_and_no_more():
    context = read_recipe("base", recipes_directory())
    assert {"Dockerfile", "requirements.txt", "lab/gpulab_server/hubauth.py", "site/ca/README"} <= set(
        context
    )
    assert not [path for path in context if "__pycache__" in path or path.endswith("README.md")]
    assert context["lab/gpulab-start"].executable
    assert not context["Dockerfile"].executable


def test_an_unknown_recipe_is_refused_with_the_known_ones(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base/Dockerfile").touch()
    with pytest.raises(ConfigError, match=r"there is no recipe 'bsae'\. Known: base\."):
        read_recipe("bsae", tmp_path)


@settings(deadline=None, max_examples=60)
@given(contexts, contexts)
def test_a_fingerprint_is_the_contents(a, b):
    assert (fingerprint(a) == fingerprint(b)) == (a == b)


@settings(deadline=None, max_examples=60)
@given(contexts)
def test_a_pack_is_the_same_for_the_same_contents_whatever_their_order(context):
    again = dict(reversed(context.items()))
    assert pack(context) == pack(again)


def test_a_pack_keeps_bytes_and_the_executable_bit_and_no_owner():
    data = pack({"a/b": ContextFile(b"x", executable=True), "c": ContextFile(b"")})
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        first = tar.getmember("a/b")
        assert tar.extractfile(first).read() == b"x"
        assert (first.mode, first.uid, first.mtime) == (0o755, 0, 0)
        assert tar.getmember("c").mode == 0o644
