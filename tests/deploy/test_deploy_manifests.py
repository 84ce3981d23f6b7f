"""The manifests of k8s/: valid for the API, and what a pod of Muster must have."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from deploy.rendering import K8S, Manifest, read, render
from muster_coordinator.settings import FaultSettings
from muster_coordinator.telemetry import metrics
from muster_runtime.settings import load
from muster_server.roles import settings_classes

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = ("dev", "test", "production", "production with monitoring")
API_VERSIONS = ("1.30", "1.34")
"""The oldest one that is promised, and the one that tests/deploy/e2e.sh was run on."""

MONITORING = "monitoring.coreos.com"
"""Kinds of the Prometheus operator, whose schemas are not the API's."""

SCALED_OBJECT_FIELDS = {
    "scaleTargetRef",
    "minReplicaCount",
    "maxReplicaCount",
    "pollingInterval",
    "cooldownPeriod",
    "fallback",
    "advanced",
    "triggers",
}
PROMETHEUS_FIELDS = {"serverAddress", "query", "threshold", "ignoreNullValues"}

SOURCES = sorted(
    kustomization.parent / resource
    for folder in ("base", "components")
    for kustomization in (K8S / folder).rglob("kustomization.yaml")
    for resource in yaml.safe_load(kustomization.read_text("utf-8")).get("resources", ())
)
"""Files that are whole without a patch: they are looked at also where nothing renders."""


@cache
def rendered(overlay: str) -> list[Manifest]:
    """What `kubectl apply -k` would apply; skips where there is nothing that renders."""
    name, _, monitoring = overlay.partition(" with ")
    return render(name, _with_monitoring if monitoring else str)


def _with_monitoring(kustomization: str) -> str:
    assert "# - ../../components/monitoring" in kustomization
    return kustomization.replace("# - ../../comp", "- ../../comp")


def validate(manifest: Manifest) -> None:
    """Against the schemas of the API, unknown fields refused."""
    if not manifest["apiVersion"].startswith(MONITORING):
        for version in API_VERSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)


def pod_of(manifest: Manifest) -> Manifest | None:
    """The template of the pods that a manifest makes."""
    match manifest["kind"]:
        case "Deployment" | "StatefulSet" | "Job":
            template: Manifest = manifest["spec"]["template"]
        case "CronJob":
            template = manifest["spec"]["jobTemplate"]["spec"]["template"]
        case "Pod":
            template = manifest
        case _:
            return None
    return template


def pods_of(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """All templates of pods, with names."""
    for manifest in manifests:
        pod = pod_of(manifest)
        if pod is not None:
            yield f"{manifest['kind']} {manifest['metadata']['name']}", pod


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(K8S)))
def test_source_is_valid(path: Path) -> None:
    documents = read(path.read_text("utf-8"))
    assert documents
    for document in documents:
        validate(document)


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_is_valid(overlay: str) -> None:
    manifests = rendered(overlay)
    for manifest in manifests:
        validate(manifest)
    spaces = {one["metadata"].get("namespace") for one in manifests if one["kind"] != "Namespace"}
    names = {one["metadata"]["name"] for one in manifests if one["kind"] == "Namespace"}
    assert spaces == names


def test_a_misspelt_field_is_found() -> None:
    manifest = read((K8S / "base" / "discovery.yaml").read_text("utf-8"))[1]
    manifest["spec"]["template"]["spec"]["enableServiceLink"] = False
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(manifest)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_restricted_and_bounded(overlay: str) -> None:
    fleet = read((Path(__file__).parent / "fleet.yaml").read_text("utf-8"))
    for name, pod in pods_of([*rendered(overlay), *fleet]):
        spec = pod["spec"]
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False, name
            assert rights["readOnlyRootFilesystem"] is True, name
            assert rights["capabilities"] == {"drop": ["ALL"]}, name
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name
            assert container["resources"]["limits"].keys() == {"memory"}, f"{name}: no limit of the processor"
            assert not container["image"].endswith(":latest"), name
            assert ":" in container["image"], name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_can_be_probed_and_are_not_all_evicted(overlay: str) -> None:
    manifests = rendered(overlay)
    budgets = {
        one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"]
        for one in manifests
        if one["kind"] == "PodDisruptionBudget"
    }
    for manifest in manifests:
        if manifest["kind"] not in ("Deployment", "StatefulSet"):
            continue
        name = manifest["metadata"]["name"]
        assert name in budgets
        spec = manifest["spec"]["template"]["spec"]
        keys = {one["topologyKey"] for one in spec["topologySpreadConstraints"]}
        assert keys == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}, name
        for container in spec["containers"]:
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys(), name
            ports = {port["containerPort"] for port in container["ports"]}
            for kind, service in (("liveness", "alive"), ("startup", "alive"), ("readiness", None)):
                asked = container[f"{kind}Probe"].get("grpc")
                if asked is not None:
                    assert asked["port"] in ports, name
                    assert asked.get("service") == service, name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_selects_finds_pods(overlay: str) -> None:
    manifests = rendered(overlay)
    labels = [pod["metadata"]["labels"] for _, pod in pods_of(manifests)]
    labels.append({"muster.dev/client": "true"})  # of those who use the installation

    def found(selector: dict[str, str]) -> bool:
        return any(selector.items() <= one.items() for one in labels)

    for manifest in manifests:
        spec, name = manifest.get("spec", {}), manifest["metadata"]["name"]
        match manifest["kind"]:
            case "Service":
                assert found(spec["selector"]), name
            case "PodDisruptionBudget":
                assert found(spec["selector"]["matchLabels"]), name
            case "NetworkPolicy":
                peers = [peer for rule in spec.get("ingress", []) for peer in rule.get("from", [])]
                peers += [peer for rule in spec.get("egress", []) for peer in rule.get("to", [])]
                chosen = [
                    spec["podSelector"],
                    *(peer["podSelector"] for peer in peers if "podSelector" in peer),
                ]
                # Base names the audit and the clients, which not every overlay has.
                optional = {"app.kubernetes.io/name": "muster-audit"}
                for selector in chosen:
                    wanted = selector.get("matchLabels", {})
                    for one in selector.get("matchExpressions", []):
                        assert all(found({one["key"]: value}) for value in one["values"]), name
                    assert found(wanted) or wanted == optional, f"{name}: {wanted}"


def test_prometheus_finds_all_processes_and_the_rules() -> None:
    manifests = rendered("production with monitoring")
    kinds = {one["kind"]: one for one in manifests}
    groups = yaml.safe_load((K8S.parent / "alerts" / "muster.yaml").read_text("utf-8"))["groups"]
    assert kinds["PrometheusRule"]["spec"]["groups"] == groups
    monitor = kinds["ServiceMonitor"]["spec"]
    scraped = set(monitor["selector"]["matchExpressions"][0]["values"])
    assert scraped == {"muster-metadata", "muster-coordinator", "muster-discovery"}
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == ["metrics"]
    for name in scraped:
        (service,) = (
            one for one in manifests if one["kind"] == "Service" and one["metadata"]["name"] == name
        )
        assert service["metadata"]["labels"][monitor["jobLabel"]] == name
        (port,) = (one["port"] for one in service["spec"]["ports"] if one["name"] == "metrics")
        (pod,) = (
            pod for whole, pod in pods_of(manifests) if whole in (f"StatefulSet {name}", f"Deployment {name}")
        )
        container = pod["spec"]["containers"][0]
        assert {"name": "metrics", "containerPort": port} in container["ports"]
        values = {one["name"]: one.get("value") for one in container["env"]}
        assert values["MUSTER_TELEMETRY_PROMETHEUS_LISTEN"] == f"0.0.0.0:{port}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_settings_exist(overlay: str) -> None:
    known = frozenset().union(*(settings.variables() for settings in settings_classes()))
    for name, pod in pods_of(rendered(overlay)):
        for container in pod["spec"]["containers"]:
            for variable in container.get("env", []):
                if variable["name"].startswith("MUSTER_"):
                    assert variable["name"] in known, f"{name}: {variable['name']}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_named_metadata_instances_are_there(overlay: str) -> None:
    manifests = {f"{one['kind']}/{one['metadata']['name']}": one for one in rendered(overlay)}
    count = manifests["StatefulSet/muster-metadata"]["spec"]["replicas"]
    expected = ",".join(f"muster-metadata-{n}.muster-metadata:7420" for n in range(count))
    for kind, part in (("StatefulSet", "coordinator"), ("Deployment", "discovery")):
        container = manifests[f"{kind}/muster-{part}"]["spec"]["template"]["spec"]["containers"][0]
        values = {one["name"]: one.get("value") for one in container["env"]}
        assert values[f"MUSTER_{part.upper()}_METADATA"] == expected


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_secrets_and_volumes_have_a_source(overlay: str) -> None:
    manifests = rendered(overlay)
    made = {one["metadata"]["name"] for one in (*manifests, *new_secrets("muster"))}
    for name, pod in pods_of(manifests):
        for volume in pod["spec"].get("volumes", []):
            wanted = (
                volume.get("secret", {}).get("secretName")
                or volume.get("configMap", {}).get("name")
                or volume.get("persistentVolumeClaim", {}).get("claimName")
            )
            assert wanted is None or wanted in made, f"{name}: {wanted}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_secrets_can_be_read_by_who_runs_in_the_pod(overlay: str) -> None:
    """Files of a Secret belong to root: a group reads those that others may not, and it is the `fsGroup`."""
    for name, pod in pods_of(rendered(overlay)):
        rights = pod["spec"]["securityContext"]
        for volume in pod["spec"].get("volumes", []):
            sources = [volume, *volume.get("projected", {}).get("sources", [])]
            modes = [source["secret"].get("defaultMode", 0o644) for source in sources if "secret" in source]
            if any(not mode & 0o004 for mode in modes):
                assert rights.get("fsGroup") == rights["runAsGroup"], f"{name}: {volume['name']}"


def new_secrets(namespace: str) -> list[Manifest]:
    """What k8s/secrets prints."""
    return read(
        subprocess.run([K8S / "secrets", namespace], capture_output=True, text=True, check=True).stdout
    )


def test_new_secrets_are_valid_and_never_the_same() -> None:
    first, second = new_secrets("somewhere"), new_secrets("somewhere")
    for secret in first:
        validate(secret)
        assert secret["metadata"]["namespace"] == "somewhere"
    by_name = {one["metadata"]["name"]: one["stringData"] for one in first}
    password = by_name["muster-log"]["url"].split(":")[2].split("@")[0]
    assert f">{password} " in by_name["muster-redis"]["users.acl"]
    assert first != second


def test_users_of_redis_have_the_rights_that_are_documented() -> None:
    page = (K8S.parent / "docs" / "security.md").read_text("utf-8")
    found = re.search(r"```\n(~muster:\* .+?)\n```", page, re.DOTALL)
    assert found is not None
    rights = " ".join(found[1].split())
    lists = [
        (K8S / "overlays" / "dev" / "users.acl").read_text("utf-8"),
        {one["metadata"]["name"]: one for one in new_secrets("x")}["muster-redis"]["stringData"]["users.acl"],
    ]
    for users in lists:
        assert any(
            line.startswith("user muster on >") and line.endswith(rights) for line in users.splitlines()
        )
        assert "user default off ~* &* +@all" in users.splitlines()


def test_redis_nodes_rewrite_their_files_at_different_sizes() -> None:
    manifests = read((K8S / "base" / "redis.yaml").read_text("utf-8"))
    ((_, pod),) = pods_of(manifests)
    (container,) = pod["spec"]["containers"]
    variables = {variable["name"]: variable for variable in container["env"]}
    place = variables["POD_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert place == "metadata.labels['apps.kubernetes.io/pod-index']"
    option = container["args"].index("--auto-aof-rewrite-min-size")
    sizes = [container["args"][option + 1].replace("$(POD_INDEX)", str(pod)) for pod in range(3)]
    assert sizes == ["064mb", "164mb", "264mb"]


def test_the_events_of_failures_fit_where_they_are_kept() -> None:
    """One more than is kept is there while the newest is written."""
    manifests = read((K8S / "base" / "coordinator.yaml").read_text("utf-8"))
    ((_, pod),) = pods_of(manifests)
    (folder,) = (one["emptyDir"] for one in pod["spec"]["volumes"] if one["name"] == "tmp")
    limit = folder["sizeLimit"]
    assert limit.endswith("Mi")
    faults = load(FaultSettings)
    assert (faults.max_files + 1) * faults.max_bytes < int(limit.removesuffix("Mi")) << 20


def test_the_scaled_object_of_the_example_is_valid_and_asks_for_what_there_is() -> None:
    """KEDA's own schema is not the API's: the fields that are used are listed here, as in KEDA 2."""
    example = ROOT / "examples" / "keda" / "scaledobject.yaml"
    (scaled,) = read(example.read_text("utf-8"))
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = scaled["spec"]
    assert spec.keys() <= SCALED_OBJECT_FIELDS
    assert spec["fallback"].keys() == {"failureThreshold", "replicas"}
    assert 1 <= spec["minReplicaCount"] <= spec["maxReplicaCount"]
    # What it makes of it is an autoscaler of the API's.
    validate(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": scaled["metadata"],
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", **spec["scaleTargetRef"]},
                "minReplicas": spec["minReplicaCount"],
                "maxReplicas": spec["maxReplicaCount"],
                **spec["advanced"]["horizontalPodAutoscalerConfig"],
            },
        }
    )
    (trigger,) = spec["triggers"]
    assert trigger["type"] == "prometheus"
    assert trigger["metadata"].keys() <= PROMETHEUS_FIELDS
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    asked = re.fullmatch(r'sum\((\w+)\{(\w+)="crawlers"\}\)', trigger["metadata"]["query"])
    assert asked is not None
    assert asked[1] == metrics.GROUP_LAG.name
    assert asked[2] in metrics.GROUP_LAG.labels
