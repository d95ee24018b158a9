"""Certificates for tests, made by the openssl command: an authority, and what it signs."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from hoplite_ucx.transports.configuration import TlsFiles

NEEDS_OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not here")

_CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=20)


@dataclass(frozen=True)
class Authority:
    folder: Path
    name: str

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.pem"

    @classmethod
    def make(cls, folder: Path, name: str = "ca") -> "Authority":
        made = cls(folder, name)
        key, out = str(folder / f"{name}.key"), str(made.certificate)
        _openssl("req", "-x509", *_CURVE, "-nodes", "-subj", f"/CN={name}", "-days", "2", "-keyout", key, "-out", out)
        return made

    def issue(self, name: str, *, days: int = 2, password: str | None = None) -> TlsFiles:
        """A certificate for server and client, and its key. With no days it has run out already."""
        key, request, out = (self.folder / f"{name}.{ending}" for ending in ("key", "csr", "pem"))
        protect = ["-nodes"] if password is None else ["-passout", f"pass:{password}"]
        _openssl("req", *_CURVE, *protect, "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request))
        authority = ["-CA", str(self.certificate), "-CAkey", str(self.folder / f"{self.name}.key"), "-CAcreateserial"]
        _openssl("x509", "-req", "-in", str(request), *authority, "-days", str(days), "-out", str(out))
        key.chmod(0o600)
        return TlsFiles(out, key, self.certificate, "a test")


def variables(files: TlsFiles) -> dict[str, str]:
    """What names them in the environment."""
    return {
        "HOPLITE_TLS_CERTIFICATE": str(files.certificate),
        "HOPLITE_TLS_KEY": str(files.key),
        "HOPLITE_TLS_CA": str(files.ca),
    }
