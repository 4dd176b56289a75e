"""What the commands of `pod.py` do: a shell, a port, the artifacts, the code of a run's machine."""

import re
import signal

from invoke import Exit

from infra import pods
from infra import sync as code_sync
from infra.errors import UsageError
from infra.journal import Journal
from infra.launch import send_code
from infra.shipment import preview
from scripts import chain, render, words
from scripts.ledger import bring_home, find_run, way
from scripts.planning import ROOT
from scripts.program import print_json, words_after_dashes


def ssh(run):
    settings = words.settings()
    with Journal.open(settings.state_file) as journal:
        op = find_run(journal, run)
        code = way(settings, op).shell(words_after_dashes() or None, cwd=pods.folder_of(op).root)
    if code:
        raise Exit(code=code)


def forward(what):
    *run, ports = what or [""]
    local, _, remote = ports.partition(":")
    if len(run) > 1 or not all(
        re.fullmatch("[0-9]{1,5}", port) and int(port) < 65536 for port in (local, remote or local)
    ):
        raise UsageError("expected a run and ports, such as: inv forward brave-otter-3 6006:6006")
    settings = words.settings()
    with Journal.open(settings.state_file) as journal:
        op = find_run(journal, *run)
        with way(settings, op).forward(int(local), int(remote or local)) as port:
            render.say(f"port {remote or local} of {op.run} answers on 127.0.0.1:{port}; Ctrl-C ends that")
            signal.pause()


def sync(run, plan, json):
    settings = words.settings()
    with Journal.open(settings.state_file) as journal:
        run = run or chain.current()
        op = find_run(journal, run) if run or not plan else None
        if plan:
            known = code_sync.pushed(way(settings, op), pods.folder_of(op).code) if op else {}
            seen = preview(ROOT, known)
            print_json(seen) if json else render.show_sync(seen, op.run if op else "")
            return
        assert op is not None
        if not op.is_live:
            raise UsageError(f"{op.run} has ended; a new launch sends the code as it is now")
        if op.stays:
            chain.use(op)
        done = send_code(op, words.provider(settings, op.vendor), ROOT, render.say)
    if json:
        print_json(done)
    else:
        render.say(f"{op.run}: {done.sent} files sent, {done.unchanged} unchanged, {done.removed} removed")


def pull(run, json):
    settings = words.settings()
    with Journal.open(settings.state_file) as journal:
        op = find_run(journal, run)
        names = bring_home(op, words.provider(settings, op.vendor), settings)
    if json:
        print_json({"run": op.run, "brought": names, "store": op.store})
    else:
        render.say(f"{op.run}: {', '.join(names) or 'nothing new'}; logs in {words.homes(settings) / op.run}")
