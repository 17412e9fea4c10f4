import dataclasses

import pytest

from gpulab_hub.deploy import processes

STAMPS = {"agent": "a", "proxy": "p", "service": "s", "hub": "h"}


def lab(paths, record, **more):
    given = {
        "node": "/usr/bin/node",
        "proxy_token": "s3cret",
        "stamps": STAMPS,
        "agent_environment": {},
        **more,
    }
    return {p.name: p for p in processes.lab_processes(paths, record, **given)}


def test_the_proxy_runs_as_itself_under_a_lock_with_its_api_on_loopback(paths, record):
    proxy = lab(paths, record)["proxy"]
    assert proxy.user == "gpulab-proxy"
    assert proxy.argv == (
        "flock",
        "--nonblock",
        "--no-fork",
        "--conflict-exit-code",
        "75",
        f"{paths.run}/proxy.lock",
        "/usr/bin/node",
        f"{paths.proxy}/node_modules/configurable-http-proxy/bin/configurable-http-proxy",
        "--ip=127.0.0.1",
        "--port=8000",
        "--api-ip=127.0.0.1",
        "--api-port=8001",
        "--error-target=http://172.31.0.1:8081/hub/error",
    )


def test_the_proxys_token_is_in_no_command_and_no_open_environment(paths, record):
    for process in lab(paths, record).values():
        assert "s3cret" not in " ".join((*process.argv, *process.environment.values()))
    assert lab(paths, record)["proxy"].secret_environment == {"CONFIGPROXY_AUTH_TOKEN": "s3cret"}


def test_each_process_has_a_user_of_its_own_and_only_hub_and_service_know_docker(paths, record):
    found = lab(paths, record)
    assert {p.user for p in found.values()} == {"gpulab", "gpulab-proxy", "gpulab-agent"}
    assert [p.name for p in found.values() if "DOCKER_HOST" in p.environment] == ["service", "hub"]


def test_the_agent_gets_what_a_simulated_machine_needs(paths, record):
    found = lab(paths, record, agent_environment={"GPULAB_SIMULATE": "/x"})
    assert [p.name for p in found.values() if "GPULAB_SIMULATE" in p.environment] == ["agent"]


@pytest.mark.parametrize(("port", "privileged"), [(80, True), (1023, True), (1024, False), (8000, False)])
def test_a_port_below_1024_costs_one_capability_not_root(paths, record, port, privileged):
    proxy = lab(paths, dataclasses.replace(record, port=port))["proxy"]
    assert (proxy.argv[0] == "setpriv") == privileged
    if privileged:
        assert "--reuid=gpulab-proxy" in proxy.argv
        assert "--bounding-set=-all,+net_bind_service" in proxy.argv


def test_a_stamp_tells_texts_apart_whatever_their_borders():
    assert processes.stamp("ab", "c") != processes.stamp("a", "bc")
    assert processes.stamp("a") == processes.stamp("a")
