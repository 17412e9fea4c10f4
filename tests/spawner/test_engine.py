import gc

import docker
import pytest
from tests.fakes.docker_engine import (
    AnswersServerError,
    DropsTheConnection,
    FailsAfterDoing,
    NeverAnswers,
    RemovalInProgress,
)

from gpulab_spawner.engine import Engine
from gpulab_spawner.errors import EngineUnavailable, NameHeld, StartFailed

CONFIG = {"Image": "gpulab/base:1", "Labels": {"gpulab.hub": "h", "gpulab.lease": "l"}}
SHORT = {**CONFIG, "Entrypoint": ["/bin/sh"]}


def test_a_container_goes_through_its_life(engine, fake):
    made = engine.create(CONFIG, "one")
    assert engine.inspect("one").status == "created"
    assert not engine.inspect(made).alive
    engine.start(made)
    assert engine.inspect(made).alive
    engine.stop(made, 1)
    state = engine.inspect(made)
    assert (state.alive, state.exit_code, state.ending()) == (False, 143, "exit code 143")
    engine.remove(made)
    assert engine.inspect(made) is None


def test_only_a_404_is_gone(engine):
    assert engine.inspect("nobody-has-this-name") is None
    engine.stop("nobody-has-this-name", 1)
    engine.remove("nobody-has-this-name")
    assert engine.logs("nobody-has-this-name") == ""


@pytest.mark.parametrize("fault", [AnswersServerError, DropsTheConnection, NeverAnswers])
@pytest.mark.parametrize("operation", ["inspect", "start", "stop", "remove", "create", "image"])
def test_a_fault_of_the_engine_is_unknown_and_worded(engine, fake, fault, operation):
    made = engine.create(CONFIG, "one")
    fake.fault = fault(operation)
    acts = {
        "inspect": lambda: engine.inspect(made),
        "start": lambda: engine.start(made),
        "stop": lambda: engine.stop(made, 0),
        "remove": lambda: engine.remove(made),
        "create": lambda: engine.create(CONFIG, "two"),
        "image": lambda: engine.image("gpulab/base:1"),
    }
    with pytest.raises(EngineUnavailable) as caught:
        acts[operation]()
    assert caught.value.message.startswith("Docker ")
    assert "gpulab doctor" in caught.value.next_step


@pytest.mark.filterwarnings("ignore:.*unclosed <socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_an_engine_that_is_not_there_is_unknown(tmp_path):
    client = docker.APIClient(base_url=f"unix://{tmp_path}/none.sock", version="1.41", timeout=1)
    with pytest.raises(EngineUnavailable, match="Docker does not answer"):
        Engine(client).inspect("x")
    client.close()
    gc.collect()  # docker-py leaves the socket of a failed connect to the collector: let it be here


def test_a_create_that_failed_after_doing_left_a_container(engine, fake):
    fake.fault = FailsAfterDoing("create")
    with pytest.raises(EngineUnavailable):
        engine.create(CONFIG, "one")
    assert engine.inspect("one").status == "created"


def test_a_held_name_names_its_holder(engine):
    holder = engine.create(CONFIG, "one")
    with pytest.raises(NameHeld, match=holder[:12]):
        engine.create(CONFIG, "one")


def test_a_missing_image_is_what_docker_lacks(engine):
    with pytest.raises(StartFailed, match="No such image: other"):
        engine.create({"Image": "other"}, "one")


def test_a_removal_in_progress_is_waited_for(engine, fake):
    made = engine.create(CONFIG, "one")
    fake.fault = RemovalInProgress(looks=3)
    engine.remove(made)
    assert engine.inspect("one") is None


def test_a_removal_that_never_ends_is_unknown(engine, fake):
    made = engine.create(CONFIG, "one")
    fake.fault = RemovalInProgress(looks=10**6)
    with pytest.raises(EngineUnavailable, match="within 30 s"):
        engine.remove(made)


def test_a_short_container_is_run_and_removed(engine, fake):
    fake.short_container_exit_code = 3
    fake.on_start = lambda c: setattr(c, "output", "no space\n")
    assert engine.run(SHORT, "short") == (3, "no space\n")
    assert fake.containers == {}


def test_a_short_container_that_fails_to_start_is_removed(engine, fake):
    fake.fault = AnswersServerError("start")
    with pytest.raises(EngineUnavailable):
        engine.run(SHORT, "short")
    assert fake.containers == {}


def test_containers_are_found_by_all_their_labels(engine):
    one = engine.create(CONFIG, "one")
    engine.create({"Image": "gpulab/base:1", "Labels": {"gpulab.hub": "other"}}, "two")
    assert [s.id for s in engine.find({"gpulab.hub": "h"})] == [one]


def test_an_end_is_worded(engine, fake):
    made = engine.create(CONFIG, "one")
    fake.end(fake.find("one"), 137, oom=True)
    assert engine.inspect(made).ending() == "out of memory"
