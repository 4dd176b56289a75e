"""The schema of RunPod's GraphQL API: types, fields, and inputs.

Sources: the vendor's GraphQL page as quoted by clients, and the queries of runpod 1.12, dstack 0.22.5 and SkyPilot
0.14.1. A field without a value in the rehearsal is null.
"""

from typing import Literal

import msgspec

from infra.rehearsal.vendors.graphql import Field, Schema


def _fields(scalars: str, **objects: str) -> dict[str, Field]:
    """Return a type's fields: scalars by name, and objects with a type."""
    return {**{name: Field() for name in scalars.split()}, **{name: Field(of=kind) for name, kind in objects.items()}}


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    value: str


class Deploy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The input of on-demand and spot rent requests."""

    gpuTypeId: str
    gpuCount: int
    name: str
    imageName: str
    cloudType: Literal["ALL", "SECURE", "COMMUNITY"] = "ALL"
    containerDiskInGb: int = 20
    volumeInGb: int = 0
    volumeMountPath: str = ""
    networkVolumeId: str | None = None
    dataCenterId: str | None = None
    countryCode: str | None = None
    ports: str = ""
    env: list[Pair] = []
    dockerArgs: str = ""
    startSsh: bool = False
    startJupyter: bool = False
    supportPublicIp: bool = False
    templateId: str | None = None
    minVcpuCount: int | None = None
    minMemoryInGb: int | None = None
    minDownload: int | None = None
    minUpload: int | None = None
    allowedCudaVersions: list[str] = []
    minCudaVersion: str | None = None
    containerRegistryAuthId: str | None = None
    compliance: list[str] = []
    stopAfter: str | None = None
    terminateAfter: str | None = None


class Bid(Deploy, frozen=True, forbid_unknown_fields=True, kw_only=True):
    bidPerGpu: float


class Which(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    podId: str
    gpuCount: int | None = None
    bidPerGpu: float | None = None


class GpuFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: str | None = None
    ids: list[str] = []


class LowestPriceInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    gpuCount: int = 1
    secureCloud: bool | None = None
    minVcpuCount: int | None = None
    minMemoryInGb: int | None = None
    minDisk: int | None = None
    minDownload: int | None = None
    minUpload: int | None = None
    supportPublicIp: bool | None = None
    countryCode: str | None = None
    dataCenterId: str | None = None
    allowedCudaVersions: list[str] = []
    cudaVersion: str | None = None
    totalDisk: int | None = None


SCHEMA = Schema(
    {
        "Query": {
            "myself": Field(of="User"),
            "pod": Field(of="Pod", takes=Which),
            "gpuTypes": Field(of="GpuType", takes=GpuFilter, is_optional=True),
        },
        "Mutation": {
            "podFindAndDeployOnDemand": Field(of="Pod", takes=Deploy),
            "podRentInterruptable": Field(of="Pod", takes=Bid),
            "podTerminate": Field(takes=Which),
            "podStop": Field(of="Pod", takes=Which),
            "podResume": Field(of="Pod", takes=Which),
            "podBidResume": Field(of="Pod", takes=Which),
        },
        "User": _fields(
            "id authId email clientBalance currentSpendPerHr hostBalance machineQuota minBalance multiFactorEnabled "
            "notifyLowBalance notifyOther notifyPodsGeneral notifyPodsStale pubKey referralEarned "
            "signedTermsOfService spendLimit templateEarned underBalance",
            pods="Pod",
            networkVolumes="NetworkVolume",
            podTemplates="PodTemplate",
            containerRegistryCreds="RegistryCredential",
        ),
        "NetworkVolume": _fields("id name size dataCenterId"),
        "PodTemplate": _fields("id name imageName containerDiskInGb dockerArgs ports readme volumeInGb isServerless"),
        "RegistryCredential": _fields("id name"),
        "Pod": _fields(
            "id aiApiId apiKey adjustedCostPerHr consumerUserId containerDiskInGb containerRegistryAuthId "
            "costMultiplier costPerHr cpuFlavorId createdAt desiredStatus dockerArgs dockerId env gpuCount "
            "gpuPowerLimitPercent imageName lastStartedAt lastStatusChange locked lowestBidPriceToResume machineId "
            "machineType memoryInGb name networkVolumeId podType port ports slsVersion templateId uptimeSeconds "
            "vcpuCount version volumeEncrypted volumeInGb volumeKey volumeMountPath",
            machine="PodMachineInfo",
            runtime="PodRuntime",
            networkVolume="NetworkVolume",
        ),
        "PodMachineInfo": _fields(
            "costPerHr currentPricePerGpu diskMBps gpuAvailable gpuDisplayName gpuTypeId listed location "
            "maintenanceEnd maintenanceNote maintenanceStart maxDownloadSpeedMbps maxUploadSpeedMbps note podHostId "
            "secureCloud supportPublicIp dataCenterId",
            gpuType="GpuType",
        ),
        "PodRuntime": _fields(
            "uptimeInSeconds", ports="PodRuntimePorts", gpus="PodRuntimeGpus", container="PodRuntimeContainer"
        ),
        "PodRuntimePorts": _fields("ip isIpPublic privatePort publicPort type"),
        "PodRuntimeGpus": _fields("id gpuUtilPercent memoryUtilPercent"),
        "PodRuntimeContainer": _fields("cpuPercent memoryPercent"),
        "GpuType": {
            **_fields(
                "id displayName manufacturer memoryInGb cudaCores secureCloud communityCloud securePrice "
                "communityPrice oneMonthPrice threeMonthPrice oneWeekPrice communitySpotPrice secureSpotPrice "
                "maxGpuCount maxGpuCountCommunityCloud maxGpuCountSecureCloud"
            ),
            "lowestPrice": Field(of="LowestPrice", takes=LowestPriceInput, is_optional=True),
        },
        "LowestPrice": _fields(
            "gpuName gpuTypeId minimumBidPrice uninterruptablePrice minMemory minVcpu rentalPercentage rentedCount "
            "totalCount stockStatus maxUnreservedGpuCount availableGpuCounts"
        ),
    }
)
