"""An environment in which an endpoint on loopback is talked to, whatever this machine has."""

from __future__ import annotations

import pytest

from tests.proposers.talk import KEY


@pytest.fixture
def endpoint_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A key, no proxies and no certificates of this machine's."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "OPENAI_BASE_URL", "OPENAI_ORG_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return monkeypatch
