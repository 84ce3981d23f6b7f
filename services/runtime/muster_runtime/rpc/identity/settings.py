"""Settings of who may call the public services."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from muster_runtime.settings import Settings


class IdentitySettings(Settings):
    """How callers of the public services prove who they are.

    A client's certificate is a proof wherever MUSTER_TLS_REQUIRE_CLIENT_CERTIFICATE is on.
    """

    model_config = SettingsConfigDict(env_prefix="MUSTER_IDENTITY_")

    required: bool = Field(
        default=False,
        description=(
            "Whether calls to public services without an identity are answered UNAUTHENTICATED. Health, and "
            "calls between processes of the cluster, need none."
        ),
    )
