"""The stores that a job writes are probed in the plan, before a machine is rented."""

from dataclasses import replace

import pytest

from infra.agent.job import Limits
from infra.records import Request
from infra.selection import registry
from packs.jobs.control import job_file
from packs.jobs.control.work import JobWork
from store.backends.backend import open_place
from store.manifest import AccessDenied, NoStore
from tests.flows.test_launch import settings as settings
from tests.store.conftest import KEY
from tests.store.conftest import no_keys as no_keys
from tests.store.conftest import s3 as s3
from tests.store.conftest import s3_server as s3_server
from tests.store.test_places import service_without

pytestmark = pytest.mark.process

DENIED = ("writes", "403 Forbidden", "AccessDenied")
LISTING = ("listing",)
CONDITIONS = ("conditions",)


@pytest.fixture
def plan_notes(s3, settings, tmp_path, monkeypatch):
    """Return a function: service without an ability, provider, mount of a bucket -> notes of the plan."""

    def notes(lack, vendor, mode, is_bucket):
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
        bucket = s3.bucket()
        open_place(bucket).create()
        keys = {name.lower(): value for name, value in KEY.items() if name != "AWS_REGION"}
        rented = replace(settings, **keys, runpod_api_key="x" * 32, runpod_url="http://127.0.0.1:9")
        rented = replace(rented, store=str(tmp_path / "store") if is_bucket else bucket)
        source = f"source: '{bucket}'" if is_bucket else "name: shelf"
        mount = f"file_mounts: {{~/out: {{{source}, mode: {mode}}}}}\n" if mode else ""
        (path := tmp_path / "job.yaml").write_text(f"{mount}run: x\n")
        work = JobWork(file=job_file.load(path), envs=({},), secrets={})
        with service_without(*lack) as (url, _):
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            plan = work.plan(rented, Request(run="r"), registry.provider(rented, vendor), Limits())
        return " / ".join(plan.notes)

    return notes


@pytest.mark.parametrize(("vendor", "mode"), [("runpod", ""), ("runpod", "MOUNT_CACHED"), ("local", "MOUNT_CACHED")])
@pytest.mark.parametrize(
    ("lack", "error", "said"),
    [
        (DENIED, AccessDenied, "AccessDenied.*AWS_ACCESS_KEY_ID"),
        (LISTING, NoStore, "lacks the listing of multipart uploads"),
        (CONDITIONS, NoStore, "lacks conditional writes"),
    ],
    ids=["read only", "no listing", "no conditions"],
)
def test_job_is_refused_if_its_store_takes_no_uploads(plan_notes, lack, error, said, vendor, mode):
    with pytest.raises(error, match=said):
        plan_notes(lack, vendor, mode, is_bucket=False)


def test_job_without_an_uploader_needs_no_store(plan_notes):
    assert "takes no changes" not in plan_notes(DENIED, "local", "", is_bucket=False)


@pytest.mark.parametrize(("lack", "error"), [(DENIED, AccessDenied), (LISTING, NoStore)])
def test_bucket_that_takes_no_changes_is_refused_or_named(plan_notes, lack, error):
    with pytest.raises(error, match="line 1: file_mounts: ~/out: s3://.* takes no changes of the job: .*mode: COPY"):
        plan_notes(lack, "runpod", "MOUNT_CACHED", is_bucket=True)
    assert "~/out: the bucket takes no changes of the job: s3://" in plan_notes(lack, "runpod", "MOUNT", is_bucket=True)
    assert "changes of the job" not in plan_notes(lack, "runpod", "COPY", is_bucket=True)


def test_bucket_of_one_job_needs_no_conditional_writes(plan_notes):
    for mode in ("MOUNT_CACHED", "MOUNT"):
        assert "changes of the job" not in plan_notes(CONDITIONS, "runpod", mode, is_bucket=True)
