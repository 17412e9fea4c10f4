import gc

import docker
import pytest
from tests.fakes.docker_engine import (
    AnswersServerError,
    DropsTheConnection,
    FailsAfterDoing,
    NeverAnswers,
    Refuses,
    RemovalInProgress,
)

from gpulab_spawner.engine import ContainerState, Engine, unix_time
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
    assert (fake.graces, fake.kept_volumes) == ([1], [])


def test_only_a_404_is_gone(engine):
    assert engine.inspect("nobody-has-this-name") is None
    engine.stop("nobody-has-this-name", 1)
    engine.remove("nobody-has-this-name")
    assert engine.logs("nobody-has-this-name") == ""


def test_a_command_in_a_container_is_waited_for_and_its_exit_code_told(engine, fake):
    made = engine.create(CONFIG, "one")
    assert engine.execute(made, ["true"], 5) is None  # it does not run
    engine.start(made)
    fake.execution_code, fake.execution_looks = 20, 3
    assert engine.execute(made, ["true"], 5) == 20
    assert engine.execute("nobody-has-this-name", ["true"], 5) is None


def test_a_command_that_does_not_end_is_unknown(engine, fake):
    made = engine.create(CONFIG, "one")
    engine.start(made)
    fake.execution_looks = 1000
    with pytest.raises(EngineUnavailable, match="did not end within 2 s"):
        engine.execute(made, ["sleep", "100"], 2)


@pytest.mark.parametrize("status", [400, 404, 409])
def test_a_program_that_the_container_does_not_have_says_nothing(engine, fake, status):
    made = engine.create(CONFIG, "one")
    engine.start(made)
    fake.fault = Refuses("exec_start", status, "OCI runtime exec failed: no such file")
    assert engine.execute(made, ["nothing"], 5) is None


@pytest.mark.parametrize("fault", [AnswersServerError, DropsTheConnection, NeverAnswers])
@pytest.mark.parametrize("operation", ["exec_create", "exec_start", "exec_inspect"])
def test_a_fault_while_a_command_runs_is_unknown(engine, fake, fault, operation):
    made = engine.create(CONFIG, "one")
    engine.start(made)
    fake.fault = fault(operation)
    with pytest.raises(EngineUnavailable):
        engine.execute(made, ["true"], 5)


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


READS = {
    "inspect": lambda engine: engine.inspect("one").status,
    "image": lambda engine: bool(engine.image("gpulab/base:1")),
    "logs": lambda engine: engine.logs("one"),
    "list": lambda engine: len(engine.find({"gpulab.hub": "h"})),
}


@pytest.fixture
def timed(fake):
    """An edge with the pauses that it makes, and a clock that each question moves on by `takes` seconds."""
    client = docker.APIClient(base_url=fake.url, version="1.41", timeout=1)
    made = Engine(client, lambda seconds: made.pauses.append(seconds), lambda: made.takes * len(fake.calls))
    made.pauses, made.takes = [], 0.0
    yield made
    client.close()


@pytest.mark.parametrize("fault", [AnswersServerError, DropsTheConnection])
@pytest.mark.parametrize("operation", READS)
def test_a_read_that_fails_at_once_is_put_again(timed, fake, fault, operation):
    timed.create(CONFIG, "one")
    well = READS[operation](timed)
    fake.calls.clear()
    fake.fault, fake.fault_lasts = fault(operation), 2
    assert READS[operation](timed) == well
    assert (fake.calls.count(operation), timed.pauses) == (3, [0.2, 0.6])


@pytest.mark.parametrize("fault", [AnswersServerError, DropsTheConnection])
@pytest.mark.parametrize("operation", READS)
def test_a_read_that_fails_three_times_is_unknown(timed, fake, fault, operation):
    timed.create(CONFIG, "one")
    fake.fault, fake.fault_lasts = fault(operation), 3
    with pytest.raises(EngineUnavailable):
        READS[operation](timed)
    assert (fake.calls.count(operation), fake.fault) == (3, None)


@pytest.mark.parametrize("fault", [NeverAnswers("inspect"), Refuses("inspect", 403, "denied by plugin")])
def test_a_time_out_and_a_refusal_are_asked_once(timed, fake, fault):
    timed.create(CONFIG, "one")
    fake.fault = fault
    with pytest.raises(EngineUnavailable):
        timed.inspect("one")
    assert (fake.calls.count("inspect"), timed.pauses) == (1, [])


def test_a_fault_that_took_long_is_asked_once(timed, fake):
    timed.create(CONFIG, "one")
    timed.takes, fake.fault = 10.0, AnswersServerError("inspect")
    with pytest.raises(EngineUnavailable):
        timed.inspect("one")
    assert fake.calls.count("inspect") == 1


@pytest.mark.parametrize("operation", ["create", "start", "stop", "remove", "wait"])
def test_what_changes_something_is_put_once(timed, fake, operation):
    fake.fault, fake.fault_lasts = AnswersServerError(operation), 1
    made = "" if operation == "create" else timed.create(CONFIG, "one")
    acts = {
        "create": lambda: timed.create(CONFIG, "one"),
        "start": lambda: timed.start(made),
        "stop": lambda: timed.stop(made, 0),
        "remove": lambda: timed.remove(made),
        "wait": lambda: timed.run(SHORT, "short"),
    }
    with pytest.raises(EngineUnavailable):
        acts[operation]()
    assert (fake.calls.count(operation), timed.pauses) == (1, [])


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
    assert (fake.containers, fake.kept_volumes) == ({}, [])


def test_a_short_container_that_fails_to_start_is_removed(engine, fake):
    fake.fault = AnswersServerError("start")
    with pytest.raises(EngineUnavailable):
        engine.run(SHORT, "short")
    assert fake.containers == {}


def test_the_last_lines_are_as_many_as_were_asked_for(engine, fake):
    made = engine.create(CONFIG, "one")
    fake.find("one").output = "a\nb\nc\n"
    assert engine.logs(made, 2) == "b\nc\n"
    assert engine.logs(made) == "a\nb\nc\n"


def test_containers_are_found_by_all_their_labels(engine):
    one = engine.create(CONFIG, "one")
    engine.create({"Image": "gpulab/base:1", "Labels": {"gpulab.hub": "other"}}, "two")
    assert [s.id for s in engine.find({"gpulab.hub": "h"})] == [one]


def test_an_end_is_worded(engine, fake):
    made = engine.create(CONFIG, "one")
    fake.end(fake.find("one"), 137, oom=True)
    assert engine.inspect(made).ending() == "out of memory"


def test_one_killed_process_is_not_the_end_of_the_server():
    # Docker's flag says that some process was killed since the start, a kernel of a notebook mostly.
    stopped = ContainerState("c", "n", "exited", exit_code=143, oom_killed=True)
    assert stopped.ending() == "exit code 143"
    assert not stopped.ended().out_of_memory


@pytest.mark.parametrize(
    ("status", "words"), [("created", "it was made but never started"), ("removing", "it is being removed")]
)
def test_a_container_without_an_exit_code_ends_in_words(status, words):
    assert ContainerState("c", "n", status).ending() == words


def test_a_short_container_that_an_earlier_run_left_makes_way(engine, fake):
    fake.fault = FailsAfterDoing("create")
    with pytest.raises(EngineUnavailable):
        engine.run(SHORT, "short")
    fake.fault = None
    assert engine.run(SHORT, "short") == (0, "")
    assert fake.containers == {}


def test_a_container_of_somebody_else_does_not_make_way(engine, fake):
    engine.create({**SHORT, "Labels": {"gpulab.hub": "another"}}, "short")
    with pytest.raises(NameHeld):
        engine.run(SHORT, "short")
    assert len(fake.containers) == 1


@pytest.mark.parametrize("status", [404, 409])
def test_a_short_container_that_somebody_else_removes_is_fine(engine, fake, status):
    fake.fault = Refuses("remove", status, "removal is in progress")
    assert engine.run(SHORT, "short") == (0, "")


def test_a_short_container_that_is_gone_before_its_end_is_unknown(engine, fake):
    fake.fault = Refuses("wait", 404, "No such container")
    with pytest.raises(EngineUnavailable, match="Docker answered 404: No such container"):
        engine.run(SHORT, "short")


@pytest.mark.parametrize("operation", ["create", "start"])
def test_what_docker_will_not_do_is_not_a_fault_that_passes(engine, fake, operation):
    fake.fault = Refuses(operation, 400, "bind source path does not exist: /srv/corpora")
    with pytest.raises(StartFailed, match=r"Docker does not start this server: .*/srv/corpora") as caught:
        engine.start(engine.create(CONFIG, "one"))
    assert "minute" not in caught.value.next_step


def test_an_answer_that_nobody_expects_is_unknown(engine, fake):
    fake.fault = Refuses("inspect", 403, "authorization denied by plugin")
    with pytest.raises(EngineUnavailable, match="Docker answered 403: authorization denied"):
        engine.inspect("one")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-30T12:00:00.123456789Z", 1796040000.123456),
        ("2026-11-30T13:00:00+01:00", 1796040000.0),
        ("0001-01-01T00:00:00Z", None),
        ("", None),
        ("soon", None),
    ],
)
def test_a_time_of_docker_is_seconds_or_none(text, seconds):
    assert unix_time(text) == seconds


@pytest.mark.parametrize(
    ("status", "alive"),
    [(s, True) for s in ("running", "paused", "restarting")]
    + [(s, False) for s in ("created", "removing", "exited", "dead")],
)
def test_what_may_still_hold_devices_is_alive(status, alive):
    assert ContainerState("c", "n", status).alive is alive


def test_a_look_tells_the_silent_from_the_gone(engine, fake):
    one, two = engine.create(CONFIG, "one"), engine.create(CONFIG, "two")
    assert {c.id for c in engine.look({"gpulab.hub": "h"}).containers} == {one, two}
    fake.fault = AnswersServerError("inspect")
    looked = engine.look({"gpulab.hub": "h"})
    assert (looked.containers, looked.silent) == ((), {one, two})


def test_a_look_at_many_waits_for_one_that_is_silent_only(timed, fake):
    for name in ("one", "two", "three"):
        timed.create(CONFIG, name)
    fake.fault = AnswersServerError("inspect")
    assert len(timed.look({"gpulab.hub": "h"}).silent) == 3
    assert (fake.calls.count("inspect"), timed.pauses) == (3 + 2, [0.2, 0.6])
