"""Certificates for tests, made by openssl: an authority, and what it signed."""

from __future__ import annotations

import subprocess
from pathlib import Path

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
USE = "keyUsage=critical,keyCertSign"


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=30)


class Authority:
    """`certificate`: the file that its clients trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = folder / f"{name}.key"
        self.certificate = folder / f"{name}.crt"
        files = ("-keyout", str(self._key), "-out", str(self.certificate))
        openssl("req", "-x509", *NEW_KEY, "-days", "30", "-subj", f"/CN={name}", "-addext", USE, *files)

    def sign(self, name: str, subject: str, *, days: int = 30, host: str = "127.0.0.1") -> Path:
        """Return a file with a key and the certificate for it. `days` below 0: it has expired."""
        key, request, signed = (self._folder / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
        openssl("req", *NEW_KEY, "-subj", subject, "-keyout", str(key), "-out", str(request))
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName=IP:{host},DNS:localhost\n")
        by = ("-CA", str(self.certificate), "-CAkey", str(self._key), "-CAcreateserial")
        how = ("-days", str(days), "-extfile", str(extensions))
        openssl("x509", "-req", "-in", str(request), *by, *how, "-out", str(signed))
        both = self._folder / f"{name}.pem"
        both.write_text(key.read_text() + signed.read_text())
        return both
