"""The component for tokens of service accounts: what the pods get, and that it makes settings."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from deploy.rendering import Manifest, render
from muster_runtime.rpc.identity.settings import IdentitySettings
from muster_runtime.settings import load

NAMED = ("muster-coordinator", "muster-discovery")


def rendered() -> list[Manifest]:
    """The overlay `test` with the component; skips where there is nothing that renders."""
    return render("test", _with_tokens)


def _with_tokens(kustomization: str) -> str:
    content = yaml.safe_load(kustomization)
    content["components"].append("../../components/service-account-tokens")
    return yaml.safe_dump(content)


@pytest.mark.slow
def test_tokens_of_service_accounts_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = rendered()
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.34", strict=True)
    workloads = [one for one in manifests if one["kind"] in ("Deployment", "StatefulSet")]
    for workload in workloads:
        spec = workload["spec"]["template"]["spec"]
        container = spec["containers"][0]
        settings = {one["name"]: one.get("value") for one in container.get("env", ())}
        settings = {name: value for name, value in settings.items() if name.startswith("MUSTER_IDENTITY_")}
        if workload["metadata"]["name"] not in NAMED:
            assert not settings
            continue
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        identity = load(IdentitySettings)
        assert (identity.required, identity.reads_tokens, identity.token_audience) == (True, True, "muster")
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        volumes = {one["name"]: one for one in spec["volumes"]}
        for file in (identity.token_jwks_ca_file, identity.token_jwks_bearer_file):
            assert file is not None
            sources = volumes[mounts[str(file.parent)]]["projected"]["sources"]
            paths = [
                source.get("serviceAccountToken", {}).get("path") or source["configMap"]["items"][0]["path"]
                for source in sources
            ]
            assert file.name in paths
            # A token with another audience would be one that clients show to Muster.
            assert all("audience" not in source.get("serviceAccountToken", {}) for source in sources)
        assert spec["automountServiceAccountToken"] is False
    policies = {one["metadata"]["name"] for one in manifests if one["kind"] == "NetworkPolicy"}
    assert "muster-issuer" in policies
