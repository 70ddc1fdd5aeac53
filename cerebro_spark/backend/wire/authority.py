"""Makes the certificates of a run, on the driver. Their keys are in memory only, and end with it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cerebro_spark.backend.wire.credentials import DRIVER, WORKER, Credentials, Role

# Clocks of hosts may be wrong, and the keys last no longer than their driver: certificates are good at any time.
_ALWAYS = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_PURPOSES = {DRIVER: ExtendedKeyUsageOID.SERVER_AUTH, WORKER: ExtendedKeyUsageOID.CLIENT_AUTH}
_UNUSED = {
    "content_commitment": False,
    "key_encipherment": False,
    "data_encipherment": False,
    "key_agreement": False,
    "encipher_only": False,
    "decipher_only": False,
}


class RunCredentials(NamedTuple):
    """The credentials of a run, for its driver and for all of its workers."""

    driver: Credentials
    worker: Credentials


def issue_credentials() -> RunCredentials:
    """Return new credentials. Nobody can issue more of the same run: the authority's key is not kept."""
    authority = _Authority()
    return RunCredentials(authority.issue(DRIVER), authority.issue(WORKER))


class _Authority:
    """Signs the certificates of one run."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("cerebro-spark run")
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._above = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
        builder = self._builder(self._name, self._key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        usage = x509.KeyUsage(digital_signature=False, key_cert_sign=True, crl_sign=False, **_UNUSED)
        self._certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())

    def issue(self, role: Role) -> Credentials:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_named(role), key.public_key())
        usage = x509.KeyUsage(digital_signature=True, key_cert_sign=False, crl_sign=False, **_UNUSED)
        for extension, critical in (
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (usage, True),
            (x509.ExtendedKeyUsage([_PURPOSES[role]]), True),
            (x509.SubjectAlternativeName([x509.DNSName(role)]), False),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
            (self._above, False),
        ):
            builder = builder.add_extension(extension, critical=critical)
        certificate = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Credentials(role, _pem(self._certificate), _pem(certificate), private.decode())

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        begin, end = _ALWAYS
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
