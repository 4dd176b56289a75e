"""`image_id` of a job file: the image of the pod where pods are containers, refused or without effect elsewhere."""

import pytest

from infra.selection.machine_spec import MachineSpec, request_for
from packs.jobs.control import job_file, lint, machines, resolve
from packs.jobs.control.refusals import Refusals

JOB = "resources: {{{0}}}\nrun: conda activate base\n"
IMAGES = {
    "image_id: 'docker:ubuntu:22.04'": ["ubuntu:22.04"],
    "image_id: 'docker:nvcr.io/nvidia/pytorch:24.07-py3', accelerators: 'H100:8'": ["nvcr.io/nvidia/pytorch:24.07-py3"],
    "any_of: [{image_id: 'docker:a:1'}, {image_id: 'docker:b:2'}]": ["a:1", "b:2"],
    "image_id: 'docker:a', ordered: [{accelerators: H100}, {accelerators: A100}]": ["a", "a"],
}
OF_A_CLOUD = ("image_id: ami-062ddd90fb6f8267a", "image_id: 'skypilot:gpu-ubuntu-2204'", "image_id: {us-east-1: ami-1}")


def read(tmp_path, resources, provider):
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(resources))
    refused = Refusals(str(path))
    file = job_file.read(path, refused)
    resolve.check(file, refused, provider, is_rented=provider != "local", is_own=False, is_rehearsed=False)
    linted = [one.text for one in lint.lint(path, provider) if one.is_refused]
    assert linted == [one.text for one in refused.found]
    return file, linted


@pytest.mark.parametrize("provider", ["", "runpod", "lium", "market"])
@pytest.mark.parametrize("resources", IMAGES, ids=range(len(IMAGES)))
def test_image_is_part_of_the_request(tmp_path, resources, provider):
    file, refused = read(tmp_path, resources, provider if provider != "market" else "")
    found = machines.wishes(file.tasks[0], MachineSpec(), provider, True, "job")
    assert refused == [] and [request_for(one.machine).image for one in found.wishes] == IMAGES[resources]
    assert not [one for one in found.notes if "image_id" in one]


@pytest.mark.parametrize("provider", ["shadeform", "local", "ssh"])
@pytest.mark.parametrize("resources", IMAGES, ids=range(len(IMAGES)))
def test_image_is_refused_where_machines_boot_none(tmp_path, resources, provider):
    _, (why,) = read(tmp_path, resources, provider)
    assert f"machines of {provider} boot no container image" in why
    assert why.endswith("add --provider runpod or --provider lium")


@pytest.mark.parametrize("provider", ["runpod", "shadeform"])
@pytest.mark.parametrize("resources", OF_A_CLOUD, ids=range(len(OF_A_CLOUD)))
def test_image_of_a_cloud_has_no_effect_and_the_plan_says_so(tmp_path, resources, provider):
    file, refused = read(tmp_path, resources, provider)
    found = machines.wishes(file.tasks[0], MachineSpec(), provider, True, "job")
    assert refused == [] and [one.machine.image for one in found.wishes] == [""]
    assert "image_id has no effect" in " ".join(found.notes)


def test_lint_expects_conda_in_an_image(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format("image_id: 'docker:continuumio/miniconda3'"))
    assert lint.lint(path) == []
    path.write_text(JOB.format("cpus: 2"))
    assert ["conda" in one.text for one in lint.lint(path)] == [True]
