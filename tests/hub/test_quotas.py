"""Limits in the database: what they do to grants, and that each change is audited."""

from datetime import date
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sqlalchemy import delete, insert, text, update
from tests.fakes.lab import GIB, NOON, Lab, machine, request

from gpulab_hub import audit, extra_hours, membership, migrations, people, quotas, schema
from gpulab_hub.accounting.budgets import Extra
from gpulab_hub.accounting.limits import parse_scope, read_rules
from gpulab_hub.audit import Edit
from gpulab_hub.database import open_database, reading, writing
from gpulab_hub.ledger import Ledger
from gpulab_spawner.errors import (
    HostMemoryShort,
    LimitRefused,
    NoCapacity,
    NotOffered,
    OverLimit,
)
from gpulab_spawner.placement.request import parse_shape
from gpulab_spawner.profiles import Defaults, read_profiles

HOUR = 3600


def days(lab):
    return {row.day: row.gpu_seconds for row in lab.rows(schema.GpuDay)}


def log(lab, **how):
    with reading(lab.engine) as connection:
        return [(e.actor, e.action, e.subject, e.before, e.after) for e in audit.entries(connection, **how)]


def extra(lab, user, hours, first, last):
    with Ledger(lab.engine).turn() as turn:
        span = (date.fromisoformat(first), date.fromisoformat(last))
        extra_hours.grant(turn, user, Extra(Fraction(hours), *span), Edit("root", lab.now, "a deadline"))


def test_without_limits_nothing_is_asked_of_them(lab):
    assert lab.open(runtime=HOUR).ends_at == NOON + HOUR
    assert lab.open("li", "none").ends_at is None


def test_a_limit_refuses_in_the_words_of_its_policy_and_leaves_nothing(lab):
    lab.limit("group:vision", {"gpus": "1"})
    lab.open(groups=("vision",))
    with pytest.raises(OverLimit) as caught:
        lab.open(server="two", groups=("vision",))
    assert caught.value.message == (
        "You asked for 1 GPU and have 1 GPU already; you may have 1 GPU at once (from group vision)."
    )
    assert caught.value.details["limit"] == "gpus"
    assert len(lab.rows(schema.LeaseRow)) == 1
    lab.open(server="two")  # nobody is in a group for good


def test_a_limit_is_told_before_what_is_taken(lab):
    """Whoever may not have a second GPU need not know that there is none."""
    lab.limit("everyone", {"gpus": "1"})
    lab.open()
    lab.open("li")
    with pytest.raises(OverLimit):
        lab.open(server="two")
    with pytest.raises(NoCapacity):
        lab.open("kim")


def test_host_memory_and_shapes_are_limited_too(lab):
    lab.limit("everyone", {"memory": "4G", "shapes": "none"})
    with pytest.raises(NotOffered, match=r"You may not use gpu:1 \(for everyone\)"):
        lab.open()
    lab.open(shape="none", memory=3 * GIB)
    with pytest.raises(OverLimit, match="needs 2 GiB of host memory and your others have 3 GiB"):
        lab.open(shape="none", memory=2 * GIB, server="two")
    lab.limit("everyone", {"memory": None})
    with pytest.raises(HostMemoryShort):
        lab.open(shape="none", memory=100 * GIB, server="two")


def test_a_wish_of_memory_counts_as_the_device_that_it_gets(lab):
    lab.inventory = machine(1, slices=2)
    lab.limit("everyone", {"gpus": "0", "slices.1g.10gb": "1"})
    assert lab.open(shape="memory:8").devices[0].profile == "1g.10gb"
    with pytest.raises(OverLimit, match=r"have 1 slice 1g\.10gb already"):
        lab.open(shape="memory:8", server="two")
    with pytest.raises(OverLimit, match="You asked for 1 GPU; you may have no GPU"):
        lab.open(shape="memory:20", server="two")


def test_a_wish_that_may_not_be_made_is_refused_before_what_is_taken(lab):
    lab.limit("user:li", {"shapes": "none,gpu"})
    lab.open(shape="gpu:2")
    with pytest.raises(NotOffered, match=r"You may not use memory:20 \(set for you\)"):
        lab.open("li", "memory:20")


def test_a_slice_counts_its_part(lab):
    lab.inventory = machine(0, slices=3)
    lab.limit("everyone", {"units": "2/7"})
    lab.open(shape="mig:1g.10gb")
    lab.open(shape="mig:1g.10gb", server="two")
    with pytest.raises(OverLimit, match=r"asked for 0\.14 GPU and have 0\.28 GPU already"):
        lab.open(shape="mig:1g.10gb", server="three")


def test_the_end_is_as_declared_or_the_latest_that_is_allowed(lab):
    lab.limit("everyone", {"longest": "8h"})
    assert lab.open(runtime=HOUR).ends_at == NOON + HOUR
    assert lab.open("li").ends_at == NOON + 8 * HOUR
    with pytest.raises(OverLimit, match="a server of yours may run for 8 h at most"):
        lab.open("kim", "none", runtime=9 * HOUR)


def test_what_ended_leases_used_counts_by_day_of_the_site(lab):
    lab.zone = ZoneInfo("Pacific/Kiritimati")  # 14 hours ahead: noon of UTC is past midnight there
    lab.admission = lab.another()
    lab.now = NOON - 3 * HOUR  # 23:00 of the 30th there
    lab.max_age = 1e9
    lab.admission = lab.another()
    lease = lab.open(shape="gpu:2")
    lab.now += 4 * HOUR + 0.9
    lab.close(lease)
    lab.close(lease)
    assert days(lab) == {"2026-11-30": 2 * HOUR, "2026-12-01": 6 * HOUR}
    lease = lab.open()
    lab.now += HOUR
    lab.close(lease)
    assert days(lab)["2026-12-01"] == 7 * HOUR


def test_a_clock_that_was_set_back_writes_no_use(lab):
    lease = lab.open()
    lab.now -= HOUR
    lab.close(lease)
    assert days(lab) == {}


def test_a_server_without_a_gpu_uses_none(lab):
    lease = lab.open(shape="none")
    lab.now += HOUR
    lab.close(lease)
    assert days(lab) == {}


def test_a_budget_counts_what_ended_and_what_runs(lab):
    lab.max_age = 1e9
    lab.admission = lab.another()
    lab.limit("everyone", {"hours.week": "10"})
    lease = lab.open(runtime=8 * HOUR)
    lab.now += 2 * HOUR
    with pytest.raises(OverLimit, match=r"would use 4 GPU-hours \(1 GPU x 4 h\), and 2 of 10 are left"):
        lab.open(server="two", runtime=4 * HOUR)
    lab.close(lease)
    assert lab.open(server="two", runtime=4 * HOUR).ends_at == lab.now + 4 * HOUR
    assert lab.open(server="three").ends_at == lab.now + 4 * HOUR
    with pytest.raises(OverLimit, match="None of your 10 GPU-hours is left this week"):
        lab.open(server="four")
    lab.open("li", "none")


def test_another_process_sees_the_same_budget(lab):
    lab.max_age = 1e9
    lab.admission, other = lab.another(), lab.another()
    lab.limit("everyone", {"hours.day": "4"})
    lab.close(lab.open(runtime=HOUR))  # both processes have read limits and past
    other.close_lease(other.open_lease(request(runtime=HOUR)).id, "stopped")
    lease = lab.open(runtime=3 * HOUR)
    lab.now += 3 * HOUR
    other.close_lease(lease.id, "stopped")
    for admission in (lab.admission, other):
        with pytest.raises(OverLimit, match="and 1 of 4 are left today"):
            admission.open_lease(request(runtime=2 * HOUR))


def test_a_change_of_limits_holds_at_once_in_every_process(lab):
    other = lab.another()
    lab.limit("everyone", {"gpus": "2"})
    lab.open()
    lab.close(lab.open("li"))
    lab.limit("everyone", {"gpus": "0"})
    for admission in (lab.admission, other):
        with pytest.raises(OverLimit, match="you may have no GPU"):
            admission.open_lease(request("li"))


def test_extra_hours_are_granted_used_first_and_audited(lab):
    lab.max_age = 1e9
    lab.admission = lab.another()
    lab.limit("everyone", {"hours.week": "2"})
    lab.close(lab.open())  # what is known of the past is kept, and must be read anew
    extra(lab, "ada", "3", "2026-11-30", "2026-12-02")
    assert lab.open().ends_at == NOON + 5 * HOUR
    assert lab.open("li").ends_at == NOON + 2 * HOUR
    assert log(lab)[0] == ("root", "quota extra", "user:ada", None, "3 GPU-hours until 2026-12-02")
    with pytest.raises(LimitRefused, match="Nobody could use 3 GPU-hours until 2026-11-29"):
        extra(lab, "ada", "3", "2026-11-30", "2026-11-29")


def test_extra_hours_that_lapsed_still_cover_what_they_covered(lab):
    """Of the 6 hours of the 30th, 4 were covered by hours that lapsed then; of the later ones 2 are left."""
    lab.max_age = 1e9
    lab.admission = lab.another()
    lab.limit("everyone", {"hours.day": "1"})
    extra(lab, "ada", "4", "2026-11-30", "2026-11-30")
    extra(lab, "ada", "4", "2026-11-30", "2026-12-31")
    lease = lab.open(runtime=6 * HOUR)
    lab.now += 6 * HOUR
    lab.close(lease)
    lab.now = NOON + 5 * 86400
    assert lab.another().open_lease(request()).ends_at == lab.now + 3 * HOUR


def test_what_a_process_changes_itself_it_does_not_remember_otherwise(lab):
    lab.max_age = 1e9
    lab.admission = lab.another()
    book = lab.admission._ledger

    def limit(**fields):
        with book.turn() as turn:
            named = {name.replace("_", "."): text for name, text in fields.items()}
            quotas.change(turn, parse_scope("everyone"), named, Edit("root", lab.now))

    lease = lab.open(runtime=8 * HOUR)
    lab.now += 8 * HOUR
    lab.close(lease)
    lab.now += 86400
    limit(hours_day="8", gpus="1")
    assert lab.open(runtime=HOUR)
    limit(gpus="2", hours_day=None, hours_7d="10")
    with pytest.raises(OverLimit, match="and 1 of 10 are left in these 7 days"):
        lab.open(server="two", runtime=3 * HOUR)
    with book.turn() as turn:
        day = date(2026, 12, 1)
        extra_hours.grant(turn, "ada", Extra(Fraction(5), day, day), Edit("root", lab.now))
    assert lab.open(server="two", runtime=3 * HOUR)


def test_cores_count_in_every_process(lab):
    lab.limit("everyone", {"cpus": "3"})
    lab.open(shape="none")
    for admission in (lab.admission, lab.another()):
        with pytest.raises(OverLimit, match="needs 2 CPU cores and your others have 2 CPU cores"):
            admission.open_lease(request(shape="none", server="two"))


def test_each_change_is_audited_and_no_change_is_not(lab):
    assert len(lab.limit("group:vision", {"gpus": "2", "hours.week": "20.0"})) == 2
    assert lab.limit("group:vision", {"gpus": "2", "hours.week": "20", "units": None}) == []
    lab.limit("group:vision", {"gpus": "unlimited"})
    lab.limit("group:vision", {"gpus": None})
    assert log(lab) == [
        ("root", "quota unset", "group:vision gpus", "unlimited", None),
        ("root", "quota set", "group:vision gpus", "2", "unlimited"),
        ("root", "quota set", "group:vision hours.week", None, "20"),
        ("root", "quota set", "group:vision gpus", None, "2"),
    ]
    assert log(lab, subject="group:vision h", limit=1) == [log(lab)[2]]
    assert log(lab, limit=1, offset=1) == [log(lab)[1]]
    assert log(lab, subject="group_vision") == []


def test_one_wrong_value_changes_nothing(lab):
    with pytest.raises(LimitRefused, match=r"hours\.week cannot be set to 'many'") as caught:
        lab.limit("everyone", {"gpus": "2", "hours.week": "many"})
    assert "quota set --help" in caught.value.next_step
    assert lab.rows(schema.LimitRow) == log(lab) == []


@pytest.mark.parametrize("write", [update(schema.AuditRow).values(actor="nobody"), delete(schema.AuditRow)])
def test_the_audit_log_takes_no_change(lab, write):
    lab.limit("everyone", {"gpus": "2"})
    with pytest.raises(Exception, match="append-only"), writing(lab.engine) as connection:
        connection.execute(write)
    assert len(log(lab)) == 1


def test_a_limit_that_cannot_be_read_grants_nothing(lab):
    row = {"scope": "everyone", "name": "", "field": "gpus", "value": "many", "set_by": "x", "set_at": 0.0}
    with writing(lab.engine) as connection:
        connection.execute(insert(schema.LimitRow), row)
    with pytest.raises(quotas.LimitUnreadable, match="gpus = many in the lab's database"):
        lab.open()


RULES = read_rules({"everyone": {"gpus": 1, "hours.week": 20.5}, "group:vision": {"profiles": ["r", "jax"]}})


def seed(lab, rules=RULES):
    with Ledger(lab.engine).turn() as turn:
        return quotas.seed(turn, rules, lab.now)


def differences(lab, rules=RULES):
    with reading(lab.engine) as connection:
        return [each.words() for each in quotas.differences(connection, rules)]


def test_the_file_gives_the_first_limits_once(lab):
    assert not seed(lab, {})
    assert seed(lab)
    assert differences(lab) == []
    assert not seed(lab)
    assert ("gpulab.yaml", "quota from file", "group:vision profiles", None, "jax,r") in log(lab)
    with pytest.raises(OverLimit):
        lab.open(shape="gpu:2")


def test_a_file_that_says_otherwise_is_told_of_and_changes_nothing(lab):
    lab.limit("everyone", {"gpus": "4"})
    assert not seed(lab)
    assert differences(lab) == [
        "everyone gpus: gpulab.yaml says 1, the database 4",
        "everyone hours.week: gpulab.yaml says 20.5, the database nothing",
        "group:vision profiles: gpulab.yaml says jax,r, the database nothing",
    ]


def test_who_unset_everything_is_not_given_the_file_again(lab):
    seed(lab)
    lab.limit("everyone", {"gpus": None, "hours.week": None})
    lab.limit("group:vision", {"profiles": None})
    assert not seed(lab)
    assert lab.open(shape="gpu:2")


def test_limits_go_with_a_new_name_and_end_with_the_person(lab):
    people.ensure_person(lab.engine, "ada", NOON, 200_000)
    lab.find_person = lambda name: people.ensure_person(lab.engine, name, NOON, 200_000)
    lab.admission = lab.another()
    lab.limit("user:ada", {"gpus": "0"})
    extra(lab, "ada", "3", "2026-11-30", "2026-12-02")
    with pytest.raises(OverLimit):
        lab.open()
    lab.limit("user:grace", {"gpus": "5"})
    membership.rename(lab.engine, "ada", "grace")
    with pytest.raises(OverLimit):
        lab.open("grace")
    membership.leave(lab.engine, "grace", NOON)
    assert lab.open("grace")
    assert lab.rows(schema.LimitRow) == lab.rows(schema.ExtraHours) == []
    assert len(log(lab)) == 3


class Orders(RuleBasedStateMachine):
    """No order of edits, grants and ends, by two processes, lets anybody hold more than a limit allows."""

    @initialize()
    def begin(self):
        self.engine = open_database(f"sqlite:///{self.directory}/orders.sqlite", create=True)
        migrations.upgrade(self.engine)
        with writing(self.engine) as connection:
            for table in ("lease_devices", "leases", "gpu_days", "limits", "people"):
                connection.execute(text(f"DELETE FROM {table}"))
        self.lab = Lab(self.engine, machine(4))
        self.lab.max_age = 1e9
        self.both = [self.lab.another(), self.lab.another()]
        self.limits, self.leases, self.used, self.asked = {}, {}, 0.0, 0

    def teardown(self):
        self.engine.dispose()

    @rule(field=st.sampled_from(["gpus", "servers", "hours.month"]), value=st.integers(0, 4))
    def edit(self, field, value):
        self.lab.limit("everyone", {field: str(value)})
        self.limits[field] = value

    @rule(field=st.sampled_from(["gpus", "servers", "hours.month"]))
    def lift(self, field):
        self.lab.limit("everyone", {field: None})
        self.limits.pop(field, None)

    @rule(who=st.integers(0, 1), count=st.integers(1, 3), runtime=st.sampled_from([None, HOUR, 2 * HOUR]))
    def grant(self, who, count, runtime):
        self.asked += 1
        name = f"s{self.asked}"
        try:
            lease = self.both[who].open_lease(request("ada", f"gpu:{count}", name, GIB, runtime))
        except (OverLimit, NoCapacity):
            return
        self.leases[lease.id] = lease
        held = list(self.leases.values())
        assert sum(len(x.devices) for x in held) <= self.limits.get("gpus", 99)
        assert len(held) <= self.limits.get("servers", 99)
        if "hours.month" in self.limits:
            now = max(self.lab.now, lease.ends_at)
            promised = sum(len(x.devices) * ((x.ends_at or now) - x.opened_at) for x in held)
            assert self.used + promised <= self.limits["hours.month"] * HOUR + 0.01

    @rule(who=st.integers(0, 1), data=st.data())
    def end(self, who, data):
        if self.leases:
            number = data.draw(st.integers(0, len(self.leases) - 1))
            lease = self.leases.pop(list(self.leases)[number])  # ids are drawn by chance, their order is not
            self.both[who].close_lease(lease.id, "stopped")
            self.used += len(lease.devices) * (self.lab.now - lease.opened_at)

    @rule(minutes=st.integers(1, 90))
    def wait(self, minutes):
        self.lab.now += minutes * 60
        for key, lease in list(self.leases.items()):
            if lease.ends_at is not None and lease.ends_at <= self.lab.now:
                self.lab.now, later = lease.ends_at, self.lab.now
                self.both[0].close_lease(key, "due")
                self.used += len(lease.devices) * (lease.ends_at - lease.opened_at)
                del self.leases[key]
                self.lab.now = later


def test_no_order_of_edits_and_grants_exceeds_a_limit(tmp_path):
    from hypothesis.stateful import run_state_machine_as_test

    kind = type("Here", (Orders,), {"directory": tmp_path})
    run_state_machine_as_test(
        kind, settings=hypothesis_settings(max_examples=25, stateful_step_count=20, deadline=None)
    )


def test_a_scope_reads_what_is_set_for_it(lab):
    lab.limit("user:ada", {"gpus": "2"})
    lab.limit("everyone", {"gpus": "1"})
    with reading(lab.engine) as connection:
        assert [str(each.scope) for each in quotas.settings(connection)] == ["everyone", "user:ada"]
        [mine] = quotas.settings(connection, parse_scope("user:ada"))
    assert (mine.field, mine.value, mine.set_by, mine.set_at) == ("gpus", "2", "root", NOON)


def test_the_page_says_what_admission_would(lab):
    lab.inventory = machine(1, slices=1)
    assert lab.admission.allowance("ada", ()) is None
    lab.limit("group:vision", {"gpus": "1", "hours.week": "20"})
    profile = read_profiles(
        [{"display_name": "PyTorch", "gpu": ["gpu:1", "mig"]}], Defaults("x", GIB)
    ).default
    before = lab.admission.allowance("nobody", ("vision",))
    assert before.quote(profile, parse_shape("gpu:1"), 4 * HOUR).words == (
        "1 GPU x 4 h = 4 GPU-h of 20 left this week"
    )
    assert before.quote(profile, parse_shape("mig:1g.10gb"), 7 * HOUR).words == (
        "a slice 1g.10gb x 7 h = 1 GPU-h of 20 left this week"
    )
    people.ensure_person(lab.engine, "ada", NOON, 200_000)
    lab.find_person = lambda name: people.ensure_person(lab.engine, name, NOON, 200_000)
    lab.admission = lab.another()
    lab.open(groups=("vision",), runtime=2 * HOUR)
    allowance = lab.admission.allowance("ada", ("vision",))
    assert allowance.lines() == ["18 of 20 GPU-hours left this week (from group vision)"]
    quote = allowance.quote(profile, parse_shape("gpu:1"), None)
    with pytest.raises(OverLimit) as caught:
        lab.open(groups=("vision",), server="two")
    assert (quote.allowed, quote.words) == (False, caught.value.message)
