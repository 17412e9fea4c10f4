import pytest

from gpulab_spawner.errors import BadOptions, ConfigError
from gpulab_spawner.placement.request import AtLeast, NoGpu, Slice, WholeGpus
from gpulab_spawner.profiles import Defaults, read_profiles

DEFAULTS = Defaults(image="gpulab/base:1", memory_bytes=4 << 30, environment={"SITE": "x"})


def read(**entry):
    return read_profiles([{"display_name": "One", **entry}], DEFAULTS).profiles[0]


def test_an_entry_is_read_whole():
    profile = read(
        slug="pt",
        description="torch",
        default=True,
        gpu=["none", "gpu:2", "mig", "memory"],
        kubespawner_override={
            "image": "gpulab/pytorch:2.7",
            "mem_limit": "16G",
            "mem_guarantee": "8G",
            "cpu_limit": 4,
            "environment": {"A": "b"},
        },
    )
    assert (profile.slug, profile.image, profile.memory_bytes, profile.guarantee_bytes) == (
        "pt",
        "gpulab/pytorch:2.7",
        16 << 30,
        8 << 30,
    )
    assert profile.shm_bytes == 8 << 30
    assert profile.environment == {"SITE": "x", "A": "b"}
    assert profile.offers(WholeGpus(2))
    assert not profile.offers(WholeGpus(1))
    assert profile.offers(Slice("3g.40gb"))
    assert profile.offers(AtLeast(11))
    assert profile.first_shape() == NoGpu()


def test_an_empty_list_still_gives_a_page():
    catalogue = read_profiles([], DEFAULTS)
    assert catalogue.default.slug == "python"
    assert catalogue.default.offers(WholeGpus(1))


@pytest.mark.parametrize(
    ("entry", "key", "words"),
    [
        ({"profile_options": {}}, "profiles.0.profile_options", "one profile for each choice"),
        ({"kubespawner_override": {"volumes": []}}, "kubespawner_override.volumes", "Known keys: cpu_limit"),
        (
            {"kubespawner_override": {"image": "lab/Torch"}},
            "kubespawner_override.image",
            "no image reference",
        ),
        ({"kubespawner_override": {"image": "lab/a@sha256:12"}}, "override.image", "is no digest"),
        ({"kubespawner_override": {"cpu_limit": -1}}, "cpu_limit", "-1 is not a number of cores"),
        ({"kubespawner_override": {"mem_limit": "lots"}}, "mem_limit", "'lots' is not a size"),
        ({"kubespawner_override": {"mem_limit": "0G"}}, "mem_limit", "'0G' is no limit"),
        ({"kubespawner_override": {"shm_size": 0}}, "shm_size", "0 is no limit"),
        ({"kubespawner_override": {"cpu_limit": 0.001}}, "cpu_limit", "0.001 is not a number of cores"),
        ({"kubespawner_override": {"mem_guarantee": "5G"}}, "mem_guarantee", "above mem_limit"),
        (
            {"kubespawner_override": {"environment": {"NVIDIA_VISIBLE_DEVICES": "all"}}},
            "NVIDIA_VISIBLE",
            "grant holds",
        ),
        ({"kubespawner_override": {"environment": {"A": 1}}}, "environment.A", "Quote it"),
        ({"gpu": ["gpu:-1"]}, "profiles.0.gpu", "'gpu:-1' is not a GPU shape"),
        ({"gpu": []}, "profiles.0.gpu", "not a list of shapes"),
        ({"gpu": [1]}, "profiles.0.gpu", "not a GPU shape"),
        ({"default": "yes"}, "profiles.0.default", "not true or false"),
        ({"slug": "No Slug"}, "profiles.0.slug", "not a slug"),
        ({"display_name": ""}, "profiles.0.display_name", "not a text"),
    ],
)
def test_a_wrong_entry_is_refused_by_its_key(entry, key, words):
    with pytest.raises(ConfigError) as caught:
        read(**entry)
    assert key in str(caught.value)
    assert words in str(caught.value)


def test_two_defaults_or_two_equal_slugs_are_refused():
    one = {"display_name": "A", "default": True}
    with pytest.raises(ConfigError, match="names an earlier profile"):
        read_profiles([one, one], DEFAULTS)
    with pytest.raises(ConfigError, match="more than one profile is the default"):
        read_profiles([one, {**one, "slug": "b"}], DEFAULTS)


def test_an_unknown_profile_is_refused_with_those_there_are():
    with pytest.raises(BadOptions, match=r"no environment 'x'.*Choose one of: one"):
        read_profiles([{"display_name": "One"}], DEFAULTS).get("x")


def test_a_variable_of_every_server_is_held_to_the_same_rules():
    with pytest.raises(ConfigError, match=r"^servers.environment.LD_PRELOAD: the lab sets this"):
        read_profiles([], Defaults("gpulab/base:1", 4 << 30, environment={"LD_PRELOAD": "/x.so"}))


def test_a_profile_of_slices_alone_has_no_shape_for_an_empty_request():
    assert read(gpu=["mig"]).first_shape() is None
    assert read(gpu=["gpu:2", "mig"]).first_shape() == WholeGpus(2)


def test_what_a_profile_leaves_out_stays_within_its_own_limit():
    site = Defaults(image="gpulab/base:1", memory_bytes=4 << 30, guarantee_bytes=3 << 30)
    small = {"display_name": "Small", "kubespawner_override": {"mem_limit": "2G"}}
    big = {"display_name": "Big", "kubespawner_override": {"mem_limit": "64G"}}
    first, second = read_profiles([small, big], site).profiles
    assert (first.guarantee_bytes, first.shm_bytes) == (2 << 30, 1 << 30)
    assert (second.guarantee_bytes, second.shm_bytes) == (3 << 30, 8 << 30)


def test_a_profiles_own_variable_wins_and_a_shape_is_offered_once():
    profile = read(gpu=["gpu:1", "gpu:1"], kubespawner_override={"environment": {"SITE": "own"}})
    assert profile.environment == {"SITE": "own"}
    assert profile.shapes == (WholeGpus(1),)


def test_the_default_is_the_one_that_says_so_else_the_first():
    one, two = {"display_name": "One"}, {"display_name": "Two"}
    assert read_profiles([one, {**two, "default": True}], DEFAULTS).default.slug == "two"
    assert read_profiles([one, two], DEFAULTS).default.slug == "one"
