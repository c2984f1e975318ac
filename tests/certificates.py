"""Certificates for tests: an authority of its own and one certificate that it signed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tasks.config import DaskTlsSettings


@dataclass(frozen=True)
class Certificates:
    """PEM files: the authority's certificate, and a certificate and its key."""

    ca: str
    cert: str
    key: str

    def settings(self) -> DaskTlsSettings:
        """As the product's settings name them."""
        return DaskTlsSettings(ca=self.ca, cert=self.cert, key=self.key)


def make_certificates(folder: Path) -> Certificates:
    """Makes an authority, which is forgotten, and a certificate that is good for an hour."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = _name("test authority")
    ca = _sign(ca_name, ca_key, ca_name, ca_key, authority=True)
    cert = _sign(_name("test cluster"), key, ca_name, ca_key, authority=False)
    made = Certificates(*(str(folder / f"{name}.pem") for name in ("ca", "cert", "key")))
    Path(made.ca).write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    Path(made.cert).write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    Path(made.key).touch(mode=0o600)
    Path(made.key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _sign(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
