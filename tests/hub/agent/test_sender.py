import contextlib
import http.server
import logging
import socket
import socketserver
import threading

import pytest

from gpulab_hub.agent import sender as sending
from gpulab_hub.agent.sender import KEPT, Sender
from gpulab_spawner.telemetry.readings import Orders, dump_orders


class Service(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers each batch with `status` and `body`, and keeps what it took; "silence" is no answer at all."""

    daemon_threads = True

    def __init__(self, path):
        self.taken = []
        self.connections = []
        self.status, self.body = 200, dump_orders(Orders())
        self.silence = threading.Event()
        self.silence.set()
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                service.connections.append(self.connection)

            def do_POST(self):
                service.taken.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
                service.silence.wait(30)
                self.send_response(service.status)
                self.send_header("Content-Length", str(len(service.body)))
                self.end_headers()
                self.wfile.write(service.body)

            def log_message(self, *words):
                pass

            def address_string(self):
                return "agent"

        super().__init__(str(path), Handler)
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def batches(self):
        return [body for _, body in self.taken]

    def stop(self):
        self.silence.set()
        self.shutdown()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.server_close()


@pytest.fixture
def socket_path(tmp_path):
    return tmp_path / "readings.sock"


@pytest.fixture
def serve(socket_path):
    made = []

    def start():
        socket_path.unlink(missing_ok=True)
        made.append(Service(socket_path))
        return made[-1]

    yield start
    for service in made:
        service.stop()


@pytest.fixture
def sender(socket_path, tmp_path, monkeypatch):
    # A machine that is busy with tests is no service that is silent.
    monkeypatch.setattr(sending, "_ANSWER_SECONDS", 30)
    monkeypatch.setattr(sending, "BUDGET", 30)
    made = Sender(socket_path, tmp_path / "orders.json")
    yield made
    made.close()


def test_batches_go_over_one_connection_and_bring_orders_back(serve, sender):
    service = serve()
    sender.send(b"one")
    connection = sender._connection
    service.body = dump_orders(Orders(release=("GPU-a",)))
    sender.send(b"two")
    assert service.taken == [("/readings", b"one"), ("/readings", b"two")]
    assert sender._connection is connection
    assert sender.orders == Orders(release=("GPU-a",))


def test_what_a_service_missed_comes_in_order_when_it_is_back(serve, sender, caplog):
    caplog.set_level(logging.INFO)
    for number in range(3):
        sender.send(b"%d" % number)
    service = serve()
    sender.send(b"3")
    assert service.batches() == [b"0", b"1", b"2", b"3"]
    sender.send(b"4")
    assert service.batches()[4:] == [b"4"]
    assert [record.message for record in caplog.records] == [
        "the service does not take readings: No such file or directory; up to 60 batches are kept",
        "the service takes readings again",
    ]


def test_of_a_long_absence_the_newest_are_kept(serve, sender):
    for number in range(KEPT + 5):
        sender.send(b"%d" % number)
    service = serve()
    sender.send(b"last")
    assert len(service.taken) == KEPT
    assert service.batches()[0] == b"6"


def test_a_service_that_restarts_between_two_batches_costs_none(serve, sender):
    first = serve()
    sender.send(b"one")
    first.stop()
    first.stop = lambda: None
    second = serve()
    sender.send(b"two")  # Its connection is to the one that is gone.
    assert second.batches() == [b"two"]


def test_a_service_that_does_not_answer_is_not_waited_for(serve, sender, monkeypatch):
    monkeypatch.setattr(sending, "_ANSWER_SECONDS", 0.05)
    service = serve()
    service.silence.clear()
    sender.send(b"one")
    assert len(sender._waiting) == 1
    service.silence.set()
    monkeypatch.setattr(sending, "_ANSWER_SECONDS", 30)
    sender.send(b"two")
    # The first came twice: whether it was taken could not be known.
    assert service.batches() == [b"one", b"one", b"two"]


def test_a_batch_that_is_refused_is_not_sent_again(serve, sender, caplog):
    service = serve()
    service.status, service.body = 400, b'{"error": {"code": "readings_unreadable"}}'
    sender.send(b"one")
    sender.send(b"two")
    assert service.batches() == [b"one", b"two"]
    assert caplog.text.count("the service refuses readings") == 1


def test_a_service_that_fails_gets_it_again(serve, sender):
    service = serve()
    service.status = 500
    sender.send(b"one")
    service.status = 200
    sender.send(b"two")
    assert service.batches() == [b"one", b"one", b"two"]


def test_an_answer_that_is_no_orders_changes_none(serve, sender, caplog):
    service = serve()
    service.body = dump_orders(Orders(release_all=True))
    sender.send(b"one")
    service.body = b"{"
    sender.send(b"two")
    assert sender.orders == Orders(release_all=True)
    assert "the service's answer cannot be read" in caplog.text


def test_orders_outlive_the_agent_and_the_service(serve, sender, socket_path, tmp_path):
    service = serve()
    service.body = dump_orders(Orders(release_all=True))
    sender.send(b"one")
    service.stop()
    service.stop = lambda: None
    restarted = Sender(socket_path, tmp_path / "orders.json")
    restarted.send(b"two")
    assert restarted.orders == Orders(release_all=True)


@pytest.mark.parametrize("kept", [None, b"", b'{"release_all": 7}'])
def test_without_orders_that_can_be_read_all_gpus_are_read(socket_path, tmp_path, kept):
    if kept is not None:
        (tmp_path / "orders.json").write_bytes(kept)
    assert Sender(socket_path, tmp_path / "orders.json").orders == Orders()


def test_orders_that_cannot_be_kept_are_obeyed_all_the_same(serve, sender, tmp_path, caplog):
    (tmp_path / "orders.json").mkdir()
    service = serve()
    service.body = dump_orders(Orders(release_all=True))
    sender.send(b"one")
    assert sender.orders.release_all
    assert "cannot be kept" in caplog.text
