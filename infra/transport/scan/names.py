"""Names of files with secrets. A name alone never excludes source files and examples."""

import fnmatch
import re

HARMLESS = (".env.example", "example.env", "*.example", "*.py", "*.pub")
ALWAYS = (
    ".env", ".env.*", "*.env", ".envrc", ".envrc.*",
    "*.pem", "*.ppk", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk",
    ".netrc", "_netrc", ".pgpass", "pgpass.conf", ".my.cnf", ".git-credentials", ".htpasswd", ".vault-token", ".s3cfg",
    ".boto", "credentials", "credentials.json", "credentials.toml", "credentials.y*ml",
    "application_default_credentials.json", "kubeconfig", "kubeconfig.y*ml", "*.kubeconfig",
    "secrets.y*ml", "secrets.json", "secrets.toml", ".*_history", "journal.sqlite*",
)  # fmt: skip
_ASSIGNED = rb"(?im)^\s*(?:export\s+|setx?\s+)?\w*(?:KEY|TOKEN|SECRET|PASSW)\w*\s*=\s*[\"']?[^\s$\"'(){}<]{8,}"
WITH = {  # file name: content that makes the file a secret
    ".npmrc": rb"(?m)^[^#;\n]*_(?:auth|authToken|password)\s*=\s*[^\s$]",
    ".yarnrc.yml": rb"(?m)^\s*npmAuth(?:Token|Ident)\s*:\s*[\"']?[^\s$\"']",
    ".pypirc": rb"(?m)^\s*password\s*[:=]\s*\S",
    "pip.conf": rb"://[^/\s:@]+:[^/\s@$]+@",
    ".dockercfg": rb"\"auth\"\s*:\s*\"[^\"]",
    "env.sh": _ASSIGNED,
    "*.env.sh": _ASSIGNED,
    "*-env.sh": _ASSIGNED,
    "*_env.sh": _ASSIGNED,
    "setenv*": _ASSIGNED,
}
BY_NAME = "the name says that the file holds secrets"


def reason(name: str) -> str:
    """Return why a file with this name stays here regardless of content; "" = may be sent."""
    return BY_NAME if _matches(name, ALWAYS) and not _matches(name, HARMLESS) else ""


def secret_lines(name: str) -> re.Pattern[bytes] | None:
    """Return the pattern of secret content for files with this name; None for an ordinary name."""
    return next((re.compile(lines) for one, lines in WITH.items() if fnmatch.fnmatchcase(name, one)), None)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
