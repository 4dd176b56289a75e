"""The pod's side of a code push: compares files, requests the changed files, and writes them.

This file is sent as text, because the pod has no project code yet. Standard library only, Python 3.9, no import of this
project. Stdin: a JSON line with the destination, the size of the request, the request as compressed JSON, and for
`take` a zlib stream of file contents. An `adopt` request copies files from an earlier push to a different pod on the
machine. Stdout: one JSON object. A refusal is printed to stderr and has its own exit code.

`state/pushed.json` beside the code records the pushed files:

    {path: [stamp: metadata at the sender, mode, sha: of the content, seen: metadata on the pod] or null: unknown}

A file with unchanged metadata on both sides is not read again.
"""

import json
import os
import shutil
import stat
import sys
import time
import zlib

MEMORY = "pushed.json"  # in the state folder of the pod
INCOMING = "state/incoming"  # in the folder of the pod: large files uploaded ahead, complete or partial
STALE_S = 86400.0  # age in seconds at which an incoming file counts as abandoned
REFUSED = 3  # exit code
CHUNK = 1 << 16
FRESH_NS = 100_000_000  # a file modified this shortly before a check may change again with the same metadata


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
            raise PushRefused(f"{self.target} is a symbolic link; no files were pushed")
        self.files: dict = {}
        self.open: dict = {}  # (real path, is free of links) by folder
        if os.path.exists(self.memory):
            try:
                with open(self.memory, encoding="ascii") as file:
                    read = json.load(file)
            except (ValueError, RecursionError) as error:
                raise PushRefused(
                    f"{self.memory} is damaged ({error}), so the list of pushed files is lost; no files were pushed"
                ) from None
            self.files = read if isinstance(read, dict) else dict.fromkeys(read)

    def _check_marker(self, token):
        try:
            with open(os.path.join(self.root, "POD.json"), encoding="utf-8") as file:
                found = json.load(file)["token"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise PushRefused(f"{self.root} has no valid POD.json; no files were pushed") from None
        if found != token:
            raise PushRefused(f"{self.root} is the pod of {found}, not of {token}; no files were pushed")

    def place(self, path):
        """Return the path of a pushed file, and whether the path is free of symbolic links."""
        folder, _, name = path.rpartition("/")
        if os.path.isabs(path) or name in ("", ".", "..") or ".." in folder.split("/"):
            raise PushRefused(f"{path} is outside of {self.target}")
        if folder not in self.open:
            here = os.path.join(self.target, folder) if folder else self.target
            self.open[folder] = here, os.path.realpath(here) == here
        here, is_open = self.open[folder]
        return f"{here}/{name}", is_open

    def compare(self, listing):
        """Return the listed files to request, and the known files missing from the list.

        `listing` is a list of [path, stamp, mode]. Returns {"ask": {path: sha or null}, "gone": [path]}.
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
        """Remove, write and record files; return the number of removed files.

        `wanted` is {"remove": [path], "keep": [[path, stamp, mode, sha]], "send": [[path, stamp, mode, sha, size]],
        "large": [[path, stamp, mode, sha, draft, size]]}; `large` files were uploaded ahead to INCOMING.
        """
        large = wanted.get("large", [])
        for entry in wanted["send"] + large:
            self.files[entry[0]] = None
        self._remember(self.files)  # the next push repairs an interrupted push
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
        """Copy the files of the newest push to this folder name in any pod of the machine; return the source pod.

        Copies only pushed files, and only from complete pushes. If this pod has the newest push, the files stay.
        """
        pods, name = os.path.dirname(self.root), os.path.basename(self.target)
        found = []
        for pod in os.listdir(pods):
            memory = os.path.join(pods, pod, "state", os.path.basename(self.memory))
            try:
                with open(memory, encoding="ascii") as file:
                    files = json.load(file)
                pushed_at = os.stat(memory).st_mtime_ns
            except (OSError, ValueError, RecursionError):  # the pod has no readable record, so its code is not used
                continue
            is_code = name != "code" or "pyproject.toml" in files  # a freshly created pod contains the agent alone
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
        """Verify a large file uploaded ahead, and move the file into place; remove abandoned uploads."""
        full = self._prepare(path)
        incoming = os.path.join(self.root, *INCOMING.split("/"))
        draft = os.path.join(incoming, draft)
        os.chmod(draft, mode)
        if content(draft, mode) != sha:
            os.unlink(draft)
            raise PushRefused(f"{path} changed during the transfer; push again")
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
                raise PushRefused(f"{path} changed during the transfer; push again")
            os.replace(draft, full)
        finally:
            if os.path.lexists(draft):
                os.unlink(draft)

    def _prepare(self, path):
        """Return the path for a file to write, after creating the parent folders; raise PushRefused for a conflict."""
        full, is_open = self.place(path)
        if not is_open:
            raise PushRefused(f"{full} is behind a symbolic link; no files were pushed")
        try:
            os.makedirs(os.path.dirname(full), exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise PushRefused(f"{path}: a file created on the pod blocks a parent folder of this path") from None
        if os.path.isdir(full) and not os.path.islink(full):
            raise PushRefused(
                f"{path}: {full} is a folder with files created on the pod; move the folder away on the pod"
            )
        return full

    def _remove(self, path):
        """Remove a pushed file and then the empty parent folders; return the number of removed files."""
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
        """Write the record durably; return the modification time by the clock of the file system."""
        os.makedirs(os.path.dirname(self.memory), exist_ok=True)
        draft = f"{self.memory}.{os.getpid()}.draft"  # without the shared helper: this file imports no project module
        with open(draft, "w", encoding="ascii") as file:
            file.write(json.dumps(files))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self.memory)
        return os.stat(self.memory).st_mtime_ns


class ContentStream:
    """A stream of file contents, concatenated in one zlib stream."""

    def __init__(self, file):
        self.file = file
        self.inflate = zlib.decompressobj()
        self.held = b""

    def read(self, size):
        """Yield `size` bytes in pieces. Raises PushRefused if the stream ends early."""
        while size:
            if not self.held:
                waiting = self.inflate.unconsumed_tail or self.file.read1(CHUNK)
                if not waiting:
                    raise PushRefused("the connection ended before all files arrived")
                self.held = self.inflate.decompress(waiting, CHUNK * 4)
            piece, self.held = self.held[:size], self.held[size:]
            size -= len(piece)
            yield piece


def look(full):
    """Return the metadata that changes whenever the file changes, or None for a missing file."""
    try:
        now = os.lstat(full)
    except OSError:
        return None
    return [now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino]


def content(full, mode):
    """Return the sha256 of a file or link, or None for a different type or mode."""
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
    import hashlib  # The import takes a tenth of a push without changes, and such a push computes no hash.

    return hashlib.sha256(text)


def main():
    # other users must not be able to change code run with this user's permissions
    os.umask(os.umask(0o022) | 0o022)
    source = sys.stdin.buffer
    try:
        pod = ReceivingFolder(**json.loads(source.readline()))  # while the sender still builds the request
        size = source.readline()
        if not size:
            raise PushRefused("the connection ended before the request arrived")
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
    except OSError as error:  # for example a full disk
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
