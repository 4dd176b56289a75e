"""The pod's side of a push: it tells what it wants, then takes it in. Sent as text, as no code of ours is there yet.

In, on stdin: a JSON line that says where, the size of a request and the request as compressed JSON; for `take` a zlib
stream of file contents after it; `adopt` asks for what an earlier push has brought to another pod here. Out: one JSON
object on stdout; a refusal goes to stderr with its own exit code. Standard library only, Python 3.9, no import of ours.

`state/pushed.json` beside the code remembers what pushes brought:
    {path: [stamp: what the sender saw, mode, sha: of the content, seen: what the pod saw] or null: not known}
A file that both sides see as they last saw it is not read again.
"""

import json
import os
import shutil
import stat
import sys
import time
import zlib

MEMORY = "pushed.json"  # in the pod's state folder
INCOMING = "state/incoming"  # in the pod's folder: large files that come ahead, whole or not
STALE_S = 86400.0  # age of an abandoned push
REFUSED = 3  # exit code
CHUNK = 1 << 16
FRESH_NS = 100_000_000  # written so shortly before it was looked at, a file may change again without a sign


class PushRefused(Exception):
    pass


class ReceivingFolder:
    def __init__(self, dest, token):
        self.root = os.path.realpath(os.path.dirname(dest))
        self.target = os.path.join(self.root, os.path.basename(dest))
        name = os.path.basename(dest)
        self.memory = os.path.join(self.root, "state", MEMORY if name == "code" else f"{name}.{MEMORY}")
        self._check_marker(token)
        if os.path.islink(self.target):
            raise PushRefused(f"{self.target} is a link; nothing is pushed through it")
        self.files: dict = {}
        self.open: dict = {}  # descriptors by folder: no link stands in the way
        if os.path.exists(self.memory):
            try:
                with open(self.memory, encoding="ascii") as file:
                    read = json.load(file)
            except (ValueError, RecursionError) as error:
                raise PushRefused(
                    f"{self.memory} is damaged ({error}); so it is not known what lies there, and nothing is pushed"
                ) from None
            self.files = read if isinstance(read, dict) else dict.fromkeys(read)

    def _check_marker(self, token):
        try:
            with open(os.path.join(self.root, "POD.json"), encoding="utf-8") as file:
                found = json.load(file)["token"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise PushRefused(f"{self.root} carries no marker of ours; nothing is pushed there") from None
        if found != token:
            raise PushRefused(f"{self.root} is the pod of {found}, not of {token}; nothing is pushed there")

    def place(self, path):
        """Return the real path of `path`, and whether no link is on the way there."""
        folder, _, name = path.rpartition("/")
        if os.path.isabs(path) or name in ("", ".", "..") or ".." in folder.split("/"):
            raise PushRefused(f"{path} leads out of {self.target}")
        if folder not in self.open:
            here = os.path.join(self.target, folder) if folder else self.target
            self.open[folder] = here, os.path.realpath(here) == here
        here, is_open = self.open[folder]
        return f"{here}/{name}", is_open

    def compare(self, listing):
        """Return the listed files that are not known to be here with that content, and files that are listed no more.

        listing: [path, stamp, mode]. Answers {"ask": {path: sha or null}, "gone": [path]}.
        """
        ask = {}
        for path, stamp, mode in listing:
            known = self.files.get(path)
            full, is_open = self.place(path)
            if known and is_open and known[3] and known[3] == look(full):
                if known[:2] != [stamp, mode]:
                    ask[path] = known[2] if known[1] == mode else None
            else:
                ask[path] = content(full, mode) if is_open else None
        listed = {path for path, _, _ in listing}
        return {"ask": ask, "gone": sorted(set(self.files) - listed)}

    def take(self, wanted, source):
        """Remove, then write what comes, then remember. Answers how many were removed.

        wanted: {"remove": [path], "keep": [[path, stamp, mode, sha]], "send": [[path, stamp, mode, sha, size]],
        "large": [[path, stamp, mode, sha, draft, size]], of files that came ahead to INCOMING}.
        """
        large = wanted.get("large", [])
        for entry in wanted["send"] + large:
            self.files[entry[0]] = None
        self._remember(self.files)  # so that a push that is cut off is cleaned up by the next
        removed = sum([self._remove(path) for path in wanted["remove"] if path in self.files])
        for path in wanted["remove"]:
            self.files.pop(path, None)
        self.open = {}
        for path, _, mode, sha, size in wanted["send"]:
            self._write(path, mode, sha, source.read(size))
        for path, _, mode, sha, draft, _ in large:
            self._adopt(path, mode, sha, os.path.basename(draft))
        now = self._remember(self.files)
        for path, stamp, mode, sha in wanted["keep"] + [entry[:4] for entry in wanted["send"] + large]:
            seen = look(self.place(path)[0])
            is_fresh = seen is None or max(seen[2], seen[3]) > now - FRESH_NS
            self.files[path] = [stamp, mode, sha, None if is_fresh else seen]
        self._remember(self.files)
        return {"removed": removed}

    def inherit(self):
        """Copy what the newest push has brought to a folder of this name, in any pod here. Answers whose it was.

        Only what pushes brought is copied, and none that is being made. Where this folder has the newest, it stays.
        """
        pods, name = os.path.dirname(self.root), os.path.basename(self.target)
        found = []
        for pod in os.listdir(pods):
            memory = os.path.join(pods, pod, "state", os.path.basename(self.memory))
            try:
                with open(memory, encoding="ascii") as file:
                    files = json.load(file)
                pushed_at = os.stat(memory).st_mtime_ns
            except (OSError, ValueError, RecursionError):  # this pod has no readable list: its code is not used
                continue
            is_code = name != "code" or "pyproject.toml" in files  # a pod that was only made has its agent, and no more
            if is_code and isinstance(files, dict) and files and all(files.values()):
                found.append((pushed_at, pod, files))
        if not found:
            return {"of": ""}
        _, pod, files = max(found)
        if pod != os.path.basename(self.root):
            self._remember({**self.files, **dict.fromkeys(files)})
            for path in set(self.files) - set(files):
                self._remove(path)
            self.files, self.open = dict.fromkeys(files), {}
            for path in files:
                source = os.path.join(pods, pod, name, *path.split("/"))
                if os.path.lexists(source):
                    target = self._prepare(path)
                    if os.path.lexists(target):
                        os.unlink(target)
                    shutil.copy2(source, target, follow_symlinks=False)
            self.files = {path: entry[:3] + [None] for path, entry in files.items()}
            self._remember(self.files)
        return {"of": pod}

    def _adopt(self, path, mode, sha, draft):
        """Move a large file that was sent ahead to its place, if its content is the expected one."""
        full = self._prepare(path)
        incoming = os.path.join(self.root, *INCOMING.split("/"))
        draft = os.path.join(incoming, draft)
        os.chmod(draft, mode)
        if content(draft, mode) != sha:
            os.unlink(draft)
            raise PushRefused(f"{path} changed while it was sent; push again")
        os.replace(draft, full)
        for name in os.listdir(incoming):
            old = os.path.join(incoming, name)
            if os.lstat(old).st_mtime < time.time() - STALE_S:
                os.unlink(old)

    def _write(self, path, mode, sha, pieces):
        full = self._prepare(path)
        folder, name = os.path.split(full)
        draft = os.path.join(folder, f".{name[:200]}.{os.getpid()}.draft")
        found = sha256()
        try:
            if mode == "link":
                target = b"".join(pieces)
                found.update(target)
                os.symlink(target, draft)
            else:
                descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    for piece in pieces:
                        found.update(piece)
                        file.write(piece)
                    os.fchmod(descriptor, mode)
            if found.hexdigest() != sha:
                raise PushRefused(f"{path} changed while it was sent; push again")
            os.replace(draft, full)
        finally:
            if os.path.lexists(draft):
                os.unlink(draft)

    def _prepare(self, path):
        """Return the place of a file that is written now, whose folders are there then."""
        full, is_open = self.place(path)
        if not is_open:
            raise PushRefused(f"{full} lies behind a link; nothing is pushed through it")
        try:
            os.makedirs(os.path.dirname(full), exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise PushRefused(f"{path}: a file that the pod has made is where one of its folders should be") from None
        if os.path.isdir(full) and not os.path.islink(full):
            raise PushRefused(f"{path}: {full} is a folder with files that the pod has made; move it away there")
        return full

    def _remove(self, path):
        """Remove a file that an earlier push brought, and the folders that are empty then."""
        full, is_open = self.place(path)
        if not is_open or not os.path.lexists(full) or (os.path.isdir(full) and not os.path.islink(full)):
            return 0
        os.unlink(full)
        folder = os.path.dirname(full)
        while folder != self.target and not os.listdir(folder):
            os.rmdir(folder)
            folder = os.path.dirname(folder)
        return 1

    def _remember(self, files):
        """Replace the memory durably; its time, by the clock of this file system."""
        os.makedirs(os.path.dirname(self.memory), exist_ok=True)
        draft = f"{self.memory}.{os.getpid()}.draft"  # by hand: this file imports nothing of ours
        with open(draft, "w", encoding="ascii") as file:
            file.write(json.dumps(files))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self.memory)
        return os.stat(self.memory).st_mtime_ns


class ContentStream:
    """Contents one after the other, as they come out of one zlib stream."""

    def __init__(self, file):
        self.file = file
        self.inflate = zlib.decompressobj()
        self.held = b""

    def read(self, size):
        """Yield `size` bytes in pieces. Raises PushRefused when the stream ends before."""
        while size:
            if not self.held:
                waiting = self.inflate.unconsumed_tail or self.file.read1(CHUNK)
                if not waiting:
                    raise PushRefused("the stream of files was cut off")
                self.held = self.inflate.decompress(waiting, CHUNK * 4)
            piece, self.held = self.held[:size], self.held[size:]
            size -= len(piece)
            yield piece


def look(full):
    """Return the stamp that tells whether a file has changed; None when there is none."""
    try:
        now = os.lstat(full)
    except OSError:
        return None
    return [now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino]


def content(full, mode):
    """Return the sha256 of the file or link there; None when it is another kind of thing or has another mode."""
    seen = look(full)
    if seen is None:
        return None
    if mode == "link":
        return sha256(os.fsencode(os.readlink(full))).hexdigest() if stat.S_ISLNK(seen[0]) else None
    if not stat.S_ISREG(seen[0]) or stat.S_IMODE(seen[0]) != mode:
        return None
    found = sha256()
    with open(full, "rb") as file:
        for piece in iter(lambda: file.read(CHUNK), b""):
            found.update(piece)
    return found.hexdigest()


def sha256(text=b""):
    import hashlib  # a tenth of a push that finds nothing changed, which needs none of it

    return hashlib.sha256(text)


def main():
    os.umask(os.umask(0o022) | 0o022)  # nobody else may write what runs with our rights
    source = sys.stdin.buffer
    try:
        pod = ReceivingFolder(**json.loads(source.readline()))  # while the request is still being made
        size = source.readline()
        if not size:
            raise PushRefused("the request was cut off")
        request = json.loads(zlib.decompress(source.read(int(size))))
        if "adopt" in request:
            answer = pod.inherit()
        elif "listing" in request:
            answer = pod.compare(request["listing"])
        else:
            answer = pod.take(request, ContentStream(source))
    except PushRefused as refusal:
        print(refusal, file=sys.stderr)
        return REFUSED
    except OSError as error:  # its disk is full, say
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
