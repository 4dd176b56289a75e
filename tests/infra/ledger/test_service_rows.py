import pytest

from infra.journal_file import Fenced
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.service_rows import service_lease


def test_one_command_at_a_time_changes_a_service_and_the_lease_holder_sees_it(tmp_path):
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    with Journal.open(environ=environ) as journal, Journal.open(environ=environ) as other:
        first = service_rows.write_desired_state(journal, "demo", "one", None)
        with pytest.raises(Fenced):
            service_rows.write_desired_state(other, "demo", "also one", None)
        lease = journal.leases.acquire(service_lease("demo"))
        service_rows.write_observed_state(journal, "demo", "two replicas", lease)
        second = service_rows.write_desired_state(other, "demo", "two", first)
        assert (second.wanted, second.seen, second.epoch) == ("two", "two replicas", first.epoch + 1)
        with pytest.raises(Fenced):
            service_rows.write_desired_state(journal, "demo", "three", first)
        newer = journal.leases.renew(lease)
        for write in (
            lambda: service_rows.write_observed_state(journal, "demo", "late", lease),
            lambda: service_rows.delete_service(journal, "demo", lease),
        ):
            with pytest.raises(Fenced):
                write()
        assert service_rows.list_services(other) == [second]
        service_rows.delete_service(journal, "demo", newer)
        assert service_rows.find(other, "demo") is None and service_rows.list_services(other) == []
