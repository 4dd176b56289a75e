"""A certificate authority for tests, and certificates as PEM files."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from serve.gateway.http.certificate import Tls

HOUR = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Authority:
    """A certificate authority; clients trust `file`."""

    file: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @staticmethod
    def begin(folder: Path) -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _built("tests", key, "tests", key, x509.BasicConstraints(ca=True, path_length=0))
        file = folder / "ca.pem"
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return Authority(file, key, certificate)

    def issue(self, tls: Tls, name: str = "localhost") -> int:
        """Write a key and its certificate, key first, each renamed into place; return the serial number."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        made = _built(name, key, "tests", self.key, x509.BasicConstraints(ca=False, path_length=None), names)
        put(Path(tls.keyfile), in_pem(key), 0o600)
        put(Path(tls.certfile), made.public_bytes(serialization.Encoding.PEM), 0o644)
        return made.serial_number


def in_pem(key: ec.EllipticCurvePrivateKey, password: bytes = b"") -> bytes:
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)


def put(path: Path, data: bytes, mode: int) -> None:
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(data)
    draft.chmod(mode)
    draft.replace(path)


def _built(subject, key, issuer, signer, constraints, names=()) -> x509.Certificate:
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder().serial_number(x509.random_serial_number()).public_key(key.public_key())
    builder = builder.subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
    builder = builder.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
    builder = builder.not_valid_before(now - HOUR).not_valid_after(now + 24 * HOUR)
    builder = builder.add_extension(constraints, critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
    return builder.sign(signer, hashes.SHA256())
