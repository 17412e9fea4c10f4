import pytest
from tests.hub.accounting.policies import ZONE, load

from gpulab_hub.accounting.quota import Granted, decide
from gpulab_hub.accounting.quota_words import refusal_of
from gpulab_hub.when import date_and_time

CASES = load()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_lab_answers_as_its_policies_say(case):
    decision = decide(case.limits, case.usage, case.request, case.now, ZONE)
    if isinstance(decision, Granted):
        until = "" if decision.ends_at is None else f" until {date_and_time(decision.ends_at, ZONE)}"
        assert (f"granted{until}", "") == (case.answer, case.next_step)
        return
    refusal = refusal_of(decision, case.now, ZONE)
    assert (refusal.message, refusal.next_step) == (case.answer, case.next_step)
    assert refusal.details["limit"] in case.limits.bounds


def test_there_are_enough_cases_and_each_has_a_name_of_its_own():
    assert len({case.name for case in CASES}) == len(CASES) >= 60
