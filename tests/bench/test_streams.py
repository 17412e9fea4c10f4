from tests.bench.streams import MOST_MS, too_dear


def test_a_viewer_that_costs_too_much_is_told_with_the_figures():
    assert too_dear({50: 0.12, 200: MOST_MS}) == []
    assert too_dear({50: 0.12, 200: MOST_MS + 0.5}) == [
        "with 200 viewers each costs 1.50 ms a batch; 1.0 ms is the most"
    ]
