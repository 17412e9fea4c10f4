"""That the benchmark of the agent works; its figures are not judged here, among other tests."""

from tests.bench.telemetry import PEERS, judge, measure


def test_every_peer_reads_and_the_agent_is_measured(tmp_path):
    found, calls = measure(tmp_path, gpus=2, rounds=2, delay=0, pause=0.0)
    assert set(found) == {"agent", *PEERS}
    assert all(spent > 0 for spent in found.values())
    assert calls > 2 * 5  # memory, power, temperature, utilisation and processes at the least


def test_too_much_of_each_kind_is_said():
    good = {"bare": 10.0, "read": 11.0, "agent": 14.0, "nvitop": 20.0}
    assert judge({8: good, 64: {name: 8 * spent for name, spent in good.items()}}) == []
    assert judge({8: {**good, "agent": 15.1}}) == ["8 GPUs: the agent takes 1.51 times its calls"]
    assert judge({8: {**good, "nvitop": 13.0}}) == ["8 GPUs: the agent takes more than nvitop"]
    many = {"bare": 100.0, "agent": 130.0, "nvitop": 200.0}
    assert judge({8: good, 64: many}) == ["from 8 to 64 GPUs the cost of each grows 1.16-fold"]
