"""The gateway with a certificate: accepted files, refusals, and clients that are not waited for."""

import asyncio
import ssl
import time
from pathlib import Path

import pytest

from flows.services import service_view
from infra.errors import UsageError
from serve.gateway.http import certificate
from serve.gateway.http.certificate import Certificate, Tls
from tests.serve.certificates import Authority, in_pem, put
from tests.serve.scripted_engine import HEALTH, gateway, until


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority.begin(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def tls(tmp_path):
    return Tls(keyfile=str(tmp_path / "its key.pem"), certfile=str(tmp_path / "chain.pem"))


def test_unusable_certificate_is_refused_with_the_fix(authority, tls):
    key, chain = Path(tls.keyfile), Path(tls.certfile)
    authority.issue(tls)
    sound = key.read_bytes(), chain.read_bytes()

    def refusal() -> str:
        with pytest.raises(UsageError, match=r"^service\.tls: ") as found:
            certificate.server_context(tls)
        put(key, sound[0], 0o600)
        put(chain, sound[1], 0o644)
        return str(found.value)

    key.chmod(0o640)
    said = refusal()
    assert "other users can read keyfile" in said and "(mode 640)" in said and said.endswith(f"chmod 600 '{key}'")
    put(key, in_pem(authority.key), 0o600)
    assert "is not the key of" in refusal()
    put(key, in_pem(authority.key, b"secret"), 0o600)
    assert "has a password" in refusal()
    chain.write_text("nothing")
    assert "not a certificate and key in PEM" in refusal()
    chain.unlink()
    assert "No such file" in refusal()
    certificate.server_context(tls)


def test_renewed_certificate_is_used_once_both_files_match(authority, tls):
    authority.issue(tls)
    one = Certificate(tls)
    first = one.context
    assert not one.renew() and one.context is first
    key = Path(tls.keyfile).read_bytes()
    authority.issue(tls)
    renewed = Path(tls.keyfile).read_bytes()
    put(Path(tls.keyfile), key, 0o600)
    for _ in range(2):  # The error is repeated at each check.
        with pytest.raises(UsageError, match="is not the key of"):
            one.renew()
    assert one.context is first
    put(Path(tls.keyfile), renewed, 0o600)
    assert one.renew() and one.context is not first


@pytest.mark.process
def test_clients_use_tls_1_2_or_newer_and_other_clients_are_not_waited_for(pair, authority, tls, caplog):
    serial = authority.issue(tls)

    async def asked(front, context):
        host, port = front.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="localhost")
        try:
            writer.write(HEALTH + b"Connection: close\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            return writer.get_extra_info("peercert")["serialNumber"], writer.get_extra_info("ssl_object").version()
        finally:
            writer.close()

    async def main():
        async with gateway(pair[0], max_connections=2, handshake_s=600.0) as front:
            front.gateway.set_tls(Certificate(tls).context)
            trusting = ssl.create_default_context(cafile=str(authority.file))
            assert await asked(front, trusting) == (serial.to_bytes(20, "big").lstrip(b"\0").hex().upper(), "TLSv1.3")
            trusting.maximum_version = ssl.TLSVersion.TLSv1_2
            assert (await asked(front, trusting))[1] == "TLSv1.2"
            old = ssl.create_default_context(cafile=str(authority.file))
            old.set_ciphers("ALL:@SECLEVEL=0")
            with pytest.deprecated_call():
                old.minimum_version = ssl.TLSVersion.TLSv1
                old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asked(front, old)
            with pytest.raises(ssl.SSLCertVerificationError):  # For clients of unknown kind.
                await asked(front, ssl.create_default_context())
            # Plain HTTP is no TLS, and a silent connection has to leave when others need the room.
            host, port = front.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(HEALTH + b"\r\n")
            assert b"HTTP/" not in await reader.read()
            writer.close()
            silent = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
            await asked(front, certificate.client_context(tls.certfile))
            assert await silent[0][0].read() == b""
            for _, one in silent:
                one.close()
            crowd = front.gateway._listener.pool
            await until(lambda: not len(crowd), "all have left")

    asyncio.run(main())
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_certificate_that_expires_soon_or_has_expired_is_reported(authority, tls):
    authority.issue(tls)
    now = time.time()
    soon, over, early = (service_view.certificate_of(tls, now + days * 86_400) for days in (0, 2, -30))
    assert soon["problem"].startswith("the certificate expires in 2") and tls.certfile in soon["problem"]
    assert (
        over["problem"].startswith("the certificate has expired, and clients refuse the connection")
        and over["ends"] == soon["ends"]
    )
    assert early["problem"] == "" and service_view.certificate_of(None, now) is None
    Path(tls.certfile).write_text("nothing")
    assert "holds no certificate in PEM" in service_view.certificate_of(tls, now)["problem"]
