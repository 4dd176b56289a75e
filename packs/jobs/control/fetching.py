"""Lines for `setup` that fetch what a mount of a bucket would bring."""

from urllib.parse import urlsplit

from packs.jobs.control.job_file import Mount

KEYS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "hf": ("HF_TOKEN",),
}


def advice(one: Mount) -> str:
    """Return the advice for a mount of an address: the line for `setup`, and the secrets that the line needs."""
    scheme = urlsplit(one.source).scheme
    line = _line(scheme, one)
    if not line:
        return f"remove the mount, and fetch {one.source} in `setup`"
    needs = f", with secrets: [{', '.join(KEYS[scheme])}]" if scheme in KEYS else ""
    return f"remove the mount and write into setup: {line}{needs}"


def _line(scheme: str, one: Mount) -> str:
    to = one.path if one.path.startswith(("/", "~/")) else f"./{one.path}"
    rest = one.source.partition("://")[2]
    if scheme == "s3":
        return f"pip install awscli && aws s3 sync {one.source} {to}"
    if scheme in ("gs", "gcs"):
        return f"pip install gsutil && mkdir -p {to} && gsutil -m rsync -r gs://{rest} {to}"
    if scheme == "hf":
        return f"pip install huggingface_hub && hf download {rest} --local-dir {to}"
    return f"curl -fsSL --create-dirs -o {to} {one.source}" if scheme in ("http", "https") else ""
