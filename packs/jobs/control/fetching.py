"""Lines for `setup` that fetch what a mount of a bucket would bring."""

from urllib.parse import urlsplit

from packs.jobs.control.job_file import Mount


def advice(one: Mount) -> str:
    """Return the advice for a mount of an address that Slipway does not read: the line for `setup`."""
    scheme = urlsplit(one.source).scheme
    to = one.path if one.path.startswith(("/", "~/")) else f"./{one.path}"
    if scheme in ("http", "https"):
        return f"remove the mount and write into setup: curl -fsSL --create-dirs -o {to} {one.source}"
    return f"add --provider skypilot, or remove the mount and fetch {one.source} in `setup`"
