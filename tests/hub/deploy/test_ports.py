import os
import socket

from gpulab_hub.deploy import ports


def listening():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    return server, server.getsockname()[1]


def test_a_free_port_has_no_obstacle_and_a_taken_one_is_taken():
    server, port = listening()
    with server:
        assert ports.why_not("127.0.0.1", port) == "taken"
    assert ports.why_not("127.0.0.1", port) is None


def test_an_address_of_another_machine_and_no_address_are_told_apart():
    assert ports.why_not("192.0.2.77", 8000) == "foreign"
    assert ports.why_not("lab.example.org", 8000) == "not an address"


def test_the_holder_of_a_port_is_named():
    server, port = listening()
    with server:
        assert ports.holder(port).endswith(f"(process {os.getpid()})")


def test_a_holder_that_cannot_be_told_is_none(tmp_path):
    (tmp_path / "net").mkdir()
    header = (
        "  sl  local_address rem_address   st tx_queue:rx_queue tr:tm->when retrnsmt   uid  timeout inode\n"
    )
    line = (
        "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1\n"
    )
    (tmp_path / "net/tcp").write_text(header + line)
    assert ports.holder(8000, tmp_path) is None
    descriptors = tmp_path / "77/fd"
    descriptors.mkdir(parents=True)
    (tmp_path / "77/comm").write_text("nginx\n")
    (descriptors / "3").symlink_to("socket:[4242]")
    assert ports.holder(8000, tmp_path) == "nginx (process 77)"
    assert ports.holder(8001, tmp_path) is None


def test_the_first_free_candidate_is_taken():
    assert ports.first_free(range(8001, 8010), lambda port: port > 8003) == 8004
    assert ports.first_free(range(3), lambda port: False) is None
