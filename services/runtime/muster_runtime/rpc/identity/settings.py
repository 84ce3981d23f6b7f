"""Settings of who may call the public services."""

from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PlainSerializer, StringConstraints, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from muster_runtime.settings import Settings

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""How tokens may be signed: with private keys alone, so that who checks a token can make none."""

_LONGEST_URL = 2_048


def _algorithms(value: Any) -> Any:
    parts = value.split(",") if isinstance(value, str) else value
    names = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    unknown = sorted(set(names) - set(ALGORITHMS))
    if unknown or not names:
        raise ValueError(f"must be some of {', '.join(ALGORITHMS)}, not {', '.join(unknown) or 'none'}")
    return names


def _https_url(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if len(value) > _LONGEST_URL:
        raise ValueError(f"it is longer than {_LONGEST_URL:,} characters")
    try:
        parts = urlsplit(value)
        well = parts.scheme == "https" and parts.hostname and parts.username is None and parts.port != 0
    except ValueError:
        well = False
    if not well:
        raise ValueError("must be an https:// address without a user")
    return value


AlgorithmList = Annotated[
    tuple[str, ...], NoDecode, BeforeValidator(_algorithms), PlainSerializer(lambda value: ",".join(value))
]
_Url = Annotated[str, BeforeValidator(_https_url)]
_Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class IdentitySettings(Settings):
    """How callers of the public services prove who they are.

    A client's certificate is a proof wherever MUSTER_TLS_REQUIRE_CLIENT_CERTIFICATE is on. With
    MUSTER_IDENTITY_TOKEN_ISSUER so is a token (JWT) of that issuer in the header `authorization: Bearer …`.
    Who shows both is who its token says.
    """

    model_config = SettingsConfigDict(env_prefix="MUSTER_IDENTITY_")

    required: bool = Field(
        default=False,
        description=(
            "Whether calls to public services without an identity are answered UNAUTHENTICATED. Health, and "
            "calls between processes of the cluster, need none."
        ),
    )
    token_issuer: _Text | None = Field(
        default=None, description="Who makes the tokens: their claim `iss`. Without it tokens are not read."
    )
    token_audience: _Text | None = Field(
        default=None, description="What the tokens are made for: in their claim `aud`."
    )
    token_algorithms: AlgorithmList = Field(
        default=("RS256", "ES256"),
        description=f"How tokens may be signed, some of {', '.join(ALGORITHMS)}.",
    )
    token_jwks_file: Path | None = Field(
        default=None,
        description="Keys of the issuer, as a JSON Web Key Set. The file may be changed meanwhile.",
    )
    token_jwks_url: _Url | None = Field(
        default=None, description="Where the keys of the issuer are fetched instead, an https:// address."
    )
    token_jwks_ca_file: Path | None = Field(
        default=None,
        description="Certificates that this address is checked against, PEM; those of the system if absent.",
    )
    token_jwks_bearer_file: Path | None = Field(
        default=None, description="Token that is shown there, if it asks for one; read at each fetch."
    )
    token_jwks_refresh_ms: int = Field(
        default=300_000, ge=1_000, le=86_400_000, description="How often the keys are fetched."
    )
    token_jwks_refetch_ms: int = Field(
        default=10_000,
        ge=100,
        le=3_600_000,
        description=(
            "Least time between two fetches: after one that failed, and where a token is signed with a key "
            "that is not known yet."
        ),
    )
    token_name_claim: _Text = Field(default="sub", description="Claim that has the name of the caller.")
    token_name_prefix: Annotated[str, StringConstraints(max_length=64)] = Field(
        default="",
        description="What the names of tokens begin with, so that none of them is the name of a certificate.",
    )
    token_leeway_ms: int = Field(
        default=10_000,
        ge=0,
        le=300_000,
        description="What the clocks of the issuer and of this process may differ by.",
    )

    _OF_TOKENS: ClassVar[tuple[str, ...]] = (
        "token_audience",
        "token_jwks_file",
        "token_jwks_url",
        "token_jwks_ca_file",
        "token_jwks_bearer_file",
    )
    _OF_URLS: ClassVar[tuple[str, ...]] = ("token_jwks_ca_file", "token_jwks_bearer_file")

    @model_validator(mode="after")
    def _complete(self) -> "IdentitySettings":
        if self.token_issuer is None:
            self._needs(self._OF_TOKENS, "token_issuer")
            return self
        if self.token_audience is None:
            self._needs(("token_issuer",), "token_audience")
        if (self.token_jwks_file is None) == (self.token_jwks_url is None):
            file, url = self.variable("token_jwks_file"), self.variable("token_jwks_url")
            raise ValueError(f"{self.variable('token_issuer')} needs one of {file} and {url}")
        if self.token_jwks_url is None:
            self._needs(self._OF_URLS, "token_jwks_url")
        return self

    def _needs(self, given: tuple[str, ...], absent: str) -> None:
        for name in given:
            if getattr(self, name) is not None:
                raise ValueError(f"{self.variable(name)} needs {self.variable(absent)}")

    @property
    def reads_tokens(self) -> bool:
        """Whether a token proves who calls."""
        return self.token_issuer is not None
