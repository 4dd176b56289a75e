"""The inventory: SkyPilot's file unchanged, our keys added, and unclear entries refused."""

import getpass
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from infra.errors import UsageError
from infra.machines import inventory, pool_import
from infra.records import Address
from infra.settings import Settings
from infra.transport import ssh_include
from infra.transport.private_keys import keys_of
from tests.needs import PRIVILEGE

REPOSITORY = Path(__file__).parents[3]
SKY = """
# two pools, as SkyPilot documents them
plain:
  hosts:
    - 1.2.3.4
    - box

hetzner:
  user: root
  identity_file: {home}/pool
  password:
  hosts:
    - ip: 5.6.7.8
      user: alice
      identity_file: {home}/alice
    - ip: 5.6.7.9
"""


@pytest.fixture
def home(tmp_path):
    """Return a home with keys, and an ssh config that includes a second config."""
    (tmp_path / ".ssh/more").mkdir(parents=True)
    for key in ("pool", "alice", ".ssh/id_rsa", ".ssh/boxkey"):
        (tmp_path / key).touch(mode=0o600)
    (tmp_path / ".ssh/config").write_text(f"Include {tmp_path}/.ssh/more/*.conf\nHost *\n  ServerAliveInterval 9\n")
    box = f'Host other "box"\n  HostName 9.9.9.9\n  User boxer\n  Port 77\n  IdentityFile {tmp_path}/.ssh/boxkey\n'
    (tmp_path / ".ssh/more/box.conf").write_text(box + "Host far\n  ProxyJump box\n")
    return tmp_path


def load(home, text):
    path = home / "ssh_node_pools.yaml"
    path.write_text(text)
    found = inventory.load(path, home)
    assert not found.unusable
    return found.hosts


def reached(host):
    to = host.address
    return f"{to.user}@{to.host}:{to.port} {Path(to.key).name}"


@pytest.mark.process
@pytest.mark.needs("ssh")
def test_skypilots_file_is_read_unchanged(home):
    hosts = load(home, SKY.format(home=home))
    assert [host.place for host in hosts] == ["plain/1.2.3.4", "plain/box", "hetzner/5.6.7.8", "hetzner/5.6.7.9"]
    assert [reached(host) for host in hosts] == [
        f"{getpass.getuser()}@1.2.3.4:22 id_rsa",
        "boxer@9.9.9.9:77 boxkey",
        "alice@5.6.7.8:22 alice",
        "root@5.6.7.9:22 pool",
    ]
    assert {(host.gpu, host.num_gpus, host.micro_usd_per_hour, host.python) for host in hosts} == {
        ("", None, 0, "python3")
    }


@pytest.mark.process
@pytest.mark.needs("ssh")
def test_an_ssh_alias_overrides_the_pool_but_not_the_port_of_the_host(home):
    text = f"p: {{user: root, identity_file: {home}/pool, hosts: [box, {{ip: other, port: 5}}, 1.1.1.1]}}"
    assert [reached(host) for host in load(home, text)] == [
        "boxer@9.9.9.9:77 boxkey",
        "boxer@9.9.9.9:5 boxkey",
        "root@1.1.1.1:22 pool",
    ]


def test_our_keys_of_a_host_override_the_keys_of_its_pool(home):
    first, second = load(
        home,
        """
lab:
  usd_per_hour: 0.35
  labels: {rack: 7}
  gpu: H100
  hosts:
    - {ip: 10.0.0.1, port: 2222, num_gpus: 8, memory: 512GB, gpu_memory: 80, python: /opt/python3.11}
    - {ip: 10.0.0.1, usd_per_hour: 0, num_gpus: 0, memory: 1.5GiB}
""",
    )
    assert (first.name, second.name) == ("10.0.0.1:2222", "10.0.0.1")
    assert (first.gpu, first.num_gpus, first.memory_bytes, first.gpu_memory_bytes) == (
        "H100",
        8,
        512 * 10**9,
        80 * 10**9,
    )
    assert (first.micro_usd_per_hour, first.labels, first.python) == (350_000, {"rack": "7"}, "/opt/python3.11")
    assert (second.micro_usd_per_hour, second.num_gpus, second.memory_bytes) == (0, 0, 3 << 29)


@pytest.mark.process
@pytest.mark.needs("ssh")
def test_every_host_is_resolved_as_ssh_resolves_it(home):
    """Wildcards, Match, tokens and proxies of the configuration hold for a host without a `Host` line of its own."""
    (home / ".ssh/config").open("a").write(
        "Host *.lab\n\tUser labber\n\tPort 2222\n  ProxyCommand nc -X 5 %h %p # 100%%\n"
        "Match host 10.0.*\n  ProxyJump first,box@second:2200\n  IdentityFile ~/%r-key\n"
        "Host near\n  HostName %h.example\n"
    )
    hosts = "[1.1.1.1, a.lab, 10.0.0.9, near, far, {ip: b.lab, port: 9}]"
    pool = f"p: {{user: me, identity_file: {home}/pool, hosts: {hosts}}}"
    plain, lab, jumped, near, far, other = load(home, pool)
    config = home / ".ssh/config"
    assert (plain.address.proxy, plain.address.user, plain.address.port) == ("", "me", 22)
    assert (lab.address.host, lab.address.user, lab.address.port) == ("a.lab", "me", 2222)
    assert lab.address.proxy == "nc -X 5 a.lab 2222 # 100%"
    assert jumped.address.proxy == (
        f"ssh -F {config} -o BatchMode=yes -J first -W '[10.0.0.9]:22' -- ssh://box@second:2200"
    )
    assert (near.address.host, near.address.proxy) == ("near.example", "")
    assert far.address.proxy == f"ssh -F {config} -o BatchMode=yes -W '[far]:22' -- ssh://box"
    assert other.address.proxy == "nc -X 5 b.lab 9 # 100%"
    for one in (plain, lab, jumped):
        assert Address.parse(str(one.address)) == one.address


FORMS = [
    "Host\tbox2\n\tHostName\t192.0.2.9\n\tPort\t77\n",
    "Host=box2\r\nHostName = 192.0.2.9\r\nUser=bob\r\n",
    'HOST other "box2" # words\n  hostname "192.0.2.9" # words\n',
    "Host !box2 *\n  HostName 192.0.2.8\nHost b*\n  HostName 192.0.2.9\n",
    "Match\toriginalhost\tbox2\n\tHostName\t192.0.2.9\n",
    'Include SSH/nosuch "SSH/sub dir/*"\n',
    "Include\tSSH/sub*/chain\n",
    "Include SSH/sub*/hidden/*\n",
    "Host box2\n  Include SSH/sub*/inner\n",
    "Include ~nosuchuser/x SSH/a**b SSH/more /\nHost box2\n  HostName 192.0.2.9\n",
    "# Host x\u2028HostName 192.0.2.8\nHost box2\n  IdentityFile ~nosuchuser/key\n  Port 5\n",
]


@pytest.mark.process
@pytest.mark.needs("ssh")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_configuration_is_read_as_ssh_reads_it(home, form):
    config, sub = home / ".ssh/config", home / ".ssh/sub dir"
    (sub / "hidden").mkdir(parents=True)
    (sub / "inner").write_text("HostName 192.0.2.9\n")
    (sub / "words").write_text("Host box2\n  HostName 192.0.2.9\n")
    (sub / "hidden/.words").write_text("Host box2\n  HostName 192.0.2.8\n")
    (sub / "chain").write_text(f"Include {home}/.ssh/sub*/words\n")
    config.write_text(form.replace("SSH", f"{home}/.ssh"))
    line = ["ssh", "-G", "-F", config, "box2"]
    said = subprocess.run(line, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    theirs = dict(reversed([line.partition(" ")[::2] for line in said.splitlines()]))
    (box,) = load(home, "p: {hosts: [box2]}")
    assert (box.address.host, str(box.address.port), box.address.user) == tuple(
        theirs[name] for name in ("hostname", "port", "user")
    )


@pytest.mark.process
@pytest.mark.needs("ssh")
@pytest.mark.parametrize("name", ["%n-%p-%r", "%L-%u-%i", "${MY_KEYS}-%%"])
def test_tokens_and_variables_in_the_name_of_a_key_are_replaced(home, name, monkeypatch):
    monkeypatch.setenv("MY_KEYS", "mine")
    own = {"%L": socket.gethostname().partition(".")[0], "%u": getpass.getuser(), "%i": str(os.getuid())}
    own |= {"%n": "box2", "%p": "77", "%r": "bob", "${MY_KEYS}": "mine", "%%": "%"}
    key = home / re.sub(r"%.|\${\w+}", lambda one: own[one[0]], name)
    key.touch(mode=0o600)
    (home / ".ssh/config").write_text(f"Host box2\n  User bob\n  Port 77\n  IdentityFile {home}/{name}\n")
    (box,) = load(home, "p: {hosts: [box2]}")
    assert box.address.key == str(key)


@pytest.mark.process
@pytest.mark.needs("ssh")
def test_tokens_that_only_ssh_knows_and_names_outside_of_utf_8_are_read(home):
    """`%C` is a hash of the host's facts, `%j` the jump host."""
    line = ["ssh", "-G", "-F", "none", "-p", "77", "-l", "bob", "-o", "ControlPath=%C", "192.0.2.9"]
    said = subprocess.run(line, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    (mark,) = re.findall("^controlpath (.*)$", said, re.MULTILINE)
    latin = f"{home}/.ssh/schl\xfcssel".encode("latin-1")
    for name in (os.fsencode(f"{home}/{mark}"), os.fsencode(f"{home}/a@gate-key"), latin):
        Path(os.fsdecode(name)).touch(mode=0o600)
    (home / ".ssh/config").write_bytes(
        f"# gr\xfc\xdfe\nHost one\n  HostName 192.0.2.9\n  User bob\n  Port 77\n  IdentityFile {home}/%C\n"
        f"Host two\n  ProxyJump a@gate\n  IdentityFile {home}/%j-key\n"
        f"Host three\n  IdentityFile ~/.ssh/schl\xfcssel\n".encode("latin-1")
    )
    one, two, three = load(home, "p: {hosts: [one, two, three]}")
    assert (one.address.key, two.address.key) == (f"{home}/{mark}", f"{home}/a@gate-key")
    assert os.fsencode(three.address.key) == latin and Address.parse(str(three.address)) == three.address
    assert str(three.address).isascii()


@pytest.mark.process
@pytest.mark.needs("ssh")
def test_the_user_of_an_entry_or_of_a_command_line_decides_which_lines_match(home):
    """An alias brings its own user, which a typed user replaces."""
    for name in ("root", "boxer", "ann"):
        (home / f"{name}-key").touch(mode=0o600)
    (home / ".ssh/config").open("a").write(
        f"Match host *.lab user root\n  Port 2222\n  IdentityFile {home}/%r-key\n  ProxyCommand nc -u %r %h %p\n"
        f"Match host *.lab user ann\n  Port 44\n  IdentityFile {home}/%r-key\n"
        f"Host named.lab\n  User ann\n"
    )
    typed = [
        inventory.reach(word, home / "no.yaml", home) for word in ("root@n1.lab", "ann@n1.lab:5", "root@named.lab")
    ]
    root, ann, named = typed
    assert [reached(host) for host in typed] == [
        "root@n1.lab:2222 root-key",
        "ann@n1.lab:5 ann-key",
        "root@named.lab:2222 root-key",
    ]
    assert [host.address.proxy for host in typed] == ["nc -u root n1.lab 2222", "", "nc -u root named.lab 2222"]
    pool = "{user: root, hosts: [n1.lab, {ip: n2.lab, user: ann}, box]}"
    assert [reached(host) for host in load(home, f"p: {pool}")] == [
        "root@n1.lab:2222 root-key",
        "ann@n2.lab:44 ann-key",
        "boxer@9.9.9.9:77 boxkey",
    ]


SYSTEM = """
umask 022; cat > "$0/system" && mount --bind "$0/system" /etc/ssh/ssh_config
[ ! -d ~/.ssh ] || mount --bind "$0/empty" ~/.ssh
exec "$@"
"""
LOADED = """
import sys
from pathlib import Path
from infra.machines import inventory
for host in inventory.load(Path(sys.argv[1])).hosts:
    to = host.address
    print(to.user, to.host, to.port, Path(to.key).name, to.proxy)
"""


@pytest.mark.process
@pytest.mark.needs("ssh", PRIVILEGE)
def test_the_configuration_of_the_system_holds_as_for_ssh(tmp_path):
    """A user without a configuration: ssh reads the file of the system, in a mount namespace of this test."""
    if not Path("/etc/ssh/ssh_config").is_file():
        pytest.skip("this system has no /etc/ssh/ssh_config")
    (tmp_path / "key").touch(mode=0o600)
    (tmp_path / "empty").mkdir(mode=0o700)
    pools = tmp_path / "pools.yaml"
    pools.write_text("p: {hosts: [n1.lab, 192.0.2.1]}")
    config = f"Host *.lab\n  ProxyJump gate\n  Port 2222\n  User ann\nHost *\n  IdentityFile {tmp_path}/key\n"
    home = pwd.getpwuid(os.getuid()).pw_dir
    line = ["unshare", "--mount", "sh", "-ec", SYSTEM, tmp_path, sys.executable, "-c", LOADED, pools]
    done = subprocess.run(
        line, input=config, capture_output=True, text=True, cwd=REPOSITORY, env={**os.environ, "HOME": home}
    )
    assert done.stdout.splitlines() == [
        "ann n1.lab 2222 key ssh -o BatchMode=yes -W '[n1.lab]:2222' -- ssh://gate",
        f"{pwd.getpwuid(os.getuid()).pw_name} 192.0.2.1 22 key ",
    ], done.stderr


@pytest.mark.process
@pytest.mark.needs("ssh")
@pytest.mark.parametrize("is_own", [True, False])
def test_ssh_is_asked_for_every_host_and_chooses_the_files_itself_for_the_own_user(home, monkeypatch, is_own):
    """A script notes the words, and asks the real ssh."""
    (home / ".ssh/config").unlink()
    words = home / "words"
    ssh_script(home, monkeypatch, f'echo "$*" >> {words}\nexec SSH -F none "$@"')
    if is_own:
        monkeypatch.setattr(ssh_include, "_own_home", lambda: str(home))
    load(home, "p: {hosts: [1.1.1.1, {ip: n1.lab, user: ann, port: 5}]}")
    files = "" if is_own else "-F none "
    assert sorted(words.read_text().splitlines()) == [
        f"-G {files}-o ControlPath=%C -- 1.1.1.1",
        f"-G {files}-o ControlPath=%C -p 5 -l ann -- n1.lab",
    ]


def ssh_script(home, monkeypatch, script):
    """Put a script before ssh; in the script, SSH is the real ssh."""
    (home / "bin").mkdir()
    (home / "bin/ssh").write_text(f"#!/bin/sh\n{script.replace('SSH', shutil.which('ssh'))}\n")
    (home / "bin/ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}/bin:{os.environ['PATH']}")


@pytest.mark.process
@pytest.mark.needs("ssh")
def test_a_configuration_of_another_owner_is_used(home, monkeypatch):
    """ssh rejects such a file unless the file is named."""
    bad = "echo Bad owner or permissions >&2; exit 255"
    ssh_script(home, monkeypatch, f'case "$2" in -F) exec SSH "$@";; *) {bad};; esac')
    monkeypatch.setattr(ssh_include, "_own_home", lambda: str(home))
    box, far, plain = load(home, f"p: {{user: me, identity_file: {home}/pool, hosts: [box, far, 1.1.1.1]}}")
    assert [reached(one) for one in (box, plain)] == ["boxer@9.9.9.9:77 boxkey", "me@1.1.1.1:22 pool"]
    assert far.address.proxy.startswith(f"ssh -F {home}/.ssh/config ")


REJECTIONS = {
    "option": ("", "Bad configuration option: usekeychain"),
    "always": ("echo no such file >&2; exit 255", "no such file"),
    "dropbear": ("echo Dropbear; exit 0", "the answer names no host, port and user"),
}


@pytest.mark.process
@pytest.mark.needs("ssh")
@pytest.mark.parametrize("kind", REJECTIONS)
def test_a_configuration_that_ssh_rejects_is_an_error_of_the_aliases_alone(home, monkeypatch, caplog, kind):
    """The real ssh rejects an option of macOS; scripts stand for other failures."""
    script, said = REJECTIONS[kind]
    if script:
        ssh_script(home, monkeypatch, script)
    else:
        (home / ".ssh/config").open("a").write("Host github.com\n  UseKeychain yes\n")
    monkeypatch.setattr(inventory, "_told", set())
    path = home / "pools.yaml"
    path.write_text(f"p: {{user: me, identity_file: {home}/pool, hosts: [1.1.1.1, box, {{ip: n1.lab, port: 5}}]}}")
    found = inventory.load(path, home)
    assert [reached(one) for one in found.hosts] == ["me@1.1.1.1:22 pool", "me@n1.lab:5 pool"]
    (bad,) = found.unusable
    assert bad.name == "box" and "ssh -G box: " in bad.why and said in bad.why
    (warning,) = caplog.messages
    assert said in warning and "addresses are used as written" in warning
    assert reached(inventory.reach("ann@1.1.1.2", home / "none", home)) == "ann@1.1.1.2:22 id_rsa"


@pytest.mark.process
@pytest.mark.needs("ssh")
def test_ssh_is_asked_about_many_machines_at_the_same_time(home, monkeypatch):
    """Each process waits for all others."""
    marks, script = home / "marks", "mkdir -p MARKS/$$; while [ $(ls MARKS | wc -l) -lt 8 ]; do sleep 0.1; done"
    ssh_script(home, monkeypatch, f'{script.replace("MARKS", str(marks))}\nexec SSH "$@"')
    hosts = ", ".join(f"1.1.1.{number}" for number in range(8))
    assert len(load(home, f"p: {{identity_file: {home}/pool, hosts: [{hosts}]}}")) == 8


@pytest.mark.process
@pytest.mark.needs("ssh")
def test_all_questions_to_ssh_have_one_time_limit(home, monkeypatch):
    monkeypatch.setattr(inventory, "LOAD_S", 1.0)
    monkeypatch.setattr(inventory, "MOST_QUESTIONS", 2)
    monkeypatch.setattr(ssh_include, "ANSWER_S", 3.0)
    ssh_script(home, monkeypatch, "exec sleep 30")
    path = home / "pools.yaml"
    path.write_text(f"p: {{identity_file: {home}/pool, hosts: [{', '.join(f'1.1.1.{n}' for n in range(9))}]}}")
    found = inventory.load(path, home)
    assert not found.hosts
    assert [one.why for one in found.unusable] == [
        f"{path}: pool p, host 1.1.1.{number}: ssh -G: no answer in 1 s" for number in range(9)
    ]


@pytest.mark.process
@pytest.mark.needs("ssh")
@pytest.mark.parametrize(
    ("word", "asked"),
    [
        ("1.1.1.1", ["1.1.1.1", "1.1.1.1"]),
        ("a/1.1.1.1", ["1.1.1.1"]),
        ("1.1.1.2:5", ["1.1.1.2"]),
        ("1.1.1.2", ["1.1.1.2"]),
        ("b", ["1.1.1.1", "1.1.1.3"]),
        ("red-1", []),
        ("", ["1.1.1.1", "1.1.1.1", "1.1.1.2", "1.1.1.3"]),
    ],
)
def test_ssh_is_asked_about_the_machines_that_a_word_names(home, monkeypatch, word, asked):
    words = home / "words"
    words.touch()
    ssh_script(home, monkeypatch, f'for one in "$@"; do :; done; echo "$one" >> {words}; exec SSH "$@"')
    path, key = home / "pools.yaml", f"identity_file: {home}/pool"
    path.write_text(
        f"a: {{{key}, hosts: [1.1.1.1, {{ip: 1.1.1.2, port: 5}}]}}\nb: {{{key}, hosts: [1.1.1.1, 1.1.1.3]}}\n"
    )
    inventory.load(path, home, word)
    assert sorted(words.read_text().splitlines()) == asked


def test_a_process_without_an_account_takes_hosts_as_written(home, monkeypatch):
    """ssh refuses such a process, as in a container with a random number of the user."""
    monkeypatch.undo()  # also of the marks of this test
    monkeypatch.setattr(ssh_include, "_own_home", lambda: "")
    assert [reached(host) for host in load(home, "p: {user: me, hosts: [1.1.1.1]}")] == ["me@1.1.1.1:22 id_rsa"]


@pytest.mark.parametrize("names", [["id_ed25519_sk.pub"], ["id_ed25519", "id_ecdsa_sk", "id_rsa"]])
def test_keys_under_their_usual_names_are_offered_without_ssh(home, names):
    (home / ".ssh/id_rsa").unlink()
    for name in names:
        (home / ".ssh" / name).write_text("sk-ssh-ed25519@openssh.com AAAA")
        (home / ".ssh" / name).chmod(0o600)
    (host,) = load(home, "p: {user: me, hosts: [1.1.1.1]}")
    assert [key.name for key in keys_of(host.address)] == names


@pytest.mark.process
@pytest.mark.needs("ssh")
def test_a_zone_belongs_to_an_ipv6_address(home):
    (home / ".ssh/config").open("a").write("Host near\n  HostName fe80::2%%eth0\n")
    hosts = load(
        home, f"p: {{identity_file: {home}/pool, hosts: ['fe80::1%eth0', near, {{ip: 'fe80::1%wlan-0.1', port: 5}}]}}"
    )
    assert [host.address.host for host in hosts] == ["fe80::1%eth0", "fe80::2%eth0", "fe80::1%wlan-0.1"]
    for host in hosts:
        assert Address.parse(str(host.address)) == host.address
    typed = inventory.reach("root@[fe80::1%eth0]:2222", home / "no.yaml", home).address
    assert (typed.user, typed.host, typed.port) == ("root", "fe80::1%eth0", 2222)


@pytest.mark.process
@pytest.mark.needs("ssh")
def test_a_configuration_that_hangs_is_an_error_of_its_hosts_alone(home, monkeypatch):
    monkeypatch.setattr(ssh_include, "ANSWER_S", 0.5)
    (home / ".ssh/config").open("a").write('Match host slow.* exec "sleep 30"\n  Port 5\n')
    path = home / "pools.yaml"
    path.write_text(f"p: {{identity_file: {home}/pool, hosts: [1.1.1.1, slow.lab]}}")
    found = inventory.load(path, home)
    assert [one.name for one in found.hosts] == ["1.1.1.1"]
    (bad,) = found.unusable
    assert bad.name == "slow.lab" and "no answer in 0.5 s; check the `Match exec` lines of" in bad.why


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected `POOL:`"),
        ("p:\n  user: root", "pool p: `hosts` must be a list of at least one machine"),
        ("p: {hosts: []}", "pool p: `hosts` must be a list"),
        ("p: {hosts: [a.b], hots: 1}", "pool p: unknown key 'hots'; did you mean hosts?"),
        ("p: {hosts: [{ip: 1.1.1.1, usr: x}]}", "pool p, host 1.1.1.1: unknown key 'usr'; did you mean user?"),
        ("p: {hosts: [{user: x}]}", "pool p, host ?: `ip` must be an address"),
        ("p: {hosts: [-oProxyCommand=x]}", "`ip` must be an address"),
        ("p: {hosts: [1.1.1.1:2222]}", "host 1.1.1.1:2222: `ip` must be .* write: - {ip: 1.1.1.1, port: 2222}"),
        ("p: {hosts: ['ann@a.b:22']}", "write: - {ip: a.b, user: ann, port: 22}"),
        ("p: {hosts: ['[2001:db8::7]:22']}", "write: - {ip: 2001:db8::7, port: 22}"),
        ("p: {hosts: ['[fe80::1%eth0]:22']}", "write: - {ip: fe80::1%eth0, port: 22}"),
        ("p: {hosts: ['box%eth0']}", "`ip` must be an address"),
        ("p: {hosts: ['fe80::1%']}", "`ip` must be an address"),
        ("p: {identity_file: ~nosuchuser/key, hosts: [1.1.1.1]}", "private key not found: ~nosuchuser/key"),
        ("p: {identity_file: " + "x" * 5000 + ", hosts: [1.1.1.1]}", "private key not found: xxx"),
        ("p: {hosts: [10]}", "pool p, host 10: expected lines of the form"),
        ("p: {hosts: [{ip: 1.1.1.1, password: hunter2}]}", "host 1.1.1.1: passwords are not supported: set"),
        ("p: {password: hunter2, hosts: [1.1.1.1]}", "passwords are not supported: set identity_file"),
        ("p: {identity_file: /no/such, hosts: [1.1.1.1]}", "host 1.1.1.1: private key not found: /no/such"),
        ("p: {user: 'a b', hosts: [1.1.1.1]}", "'a b' at '1.1.1.1' is not a valid user"),
        ("p: {hosts: [1.1.1.1, 1.1.1.1]}", "host 1.1.1.1: this machine is listed twice; the first entry counts"),
        ("p: {hosts: [{ip: 1.1.1.1, port: 70000}]}", "port is 70000; expected a whole number from 1 to 65535"),
        ("p: {hosts: [{ip: 1.1.1.1, num_gpus: true}]}", "num_gpus is True"),
        ("p: {hosts: [{ip: 1.1.1.1, usd_per_hour: .inf}]}", "usd_per_hour is inf"),
        ("p: {hosts: [{ip: 1.1.1.1, usd_per_hour: -1}]}", "usd_per_hour is -1"),
        ("p: {hosts: [{ip: 1.1.1.1, memory: lots}]}", "memory is 'lots'; expected GB, such as 64"),
        ("p: {hosts: [{ip: 1.1.1.1, labels: [a]}]}", "labels must be lines"),
        ("../p: {hosts: [1.1.1.1]}", "'../p' is not a valid name"),
        ("p: {hosts: [1.1.1.1]}\np: {hosts: [1.1.1.2]}", "'p' is given twice"),
        ("p: {hosts: [{ip: 1.1.1.1, ip: 1.1.1.2}]}", "'ip' is given twice"),
        ("p: !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("p: " + "[" * 40, "more than 16 levels"),
        ("a: &a [x]\np: [" + "*a, " * 70 + "]", "more than 64 aliases"),
        ("#" + "x" * 300_000, "longer than 256 KiB"),
    ],
)  # fmt: skip
def test_an_unclear_entry_is_refused_with_file_pool_and_host(home, text, said):
    path = home / "ssh_node_pools.yaml"
    path.write_text(text)
    try:
        (why,) = [one.why for one in inventory.load(path, home).unusable]
    except UsageError as error:  # the file is no inventory at all
        why = str(error)
    assert all(one in why for one in said.split(" .* ")) and "ssh_node_pools.yaml" in why
    assert "hunter2" not in why and "\n" not in why


LOGINS = r"1234567 0042 CORP+ann CORP\ann ann~x jürgen ann@corp.example ann#x svc$ a/b a:b%c?d _x .x".split()
REFUSED_LOGINS = ["-x", "a b", "a\tb", "a;b", "a|b", "$(id)", "`id`", "a'b", 'a"b', "a{b}", "a\\", "a\x85b", "x" * 300]


@pytest.mark.process
@pytest.mark.parametrize("login", LOGINS)
def test_a_login_that_ssh_accepts_is_accepted(home, login):
    text = login if login[0] in "01C" else json.dumps(login)  # numbers without quotes, too
    own, named = load(home, f"p: {{identity_file: {home}/pool, hosts: [{{ip: 1.1.1.1, user: {text}}}, 1.1.1.2]}}")
    assert own.address.user == login and named.address.user == getpass.getuser()
    assert Address.parse(str(own.address)) == own.address
    typed = inventory.reach(f"{login}@1.1.1.3:2222", home / "none", home)
    assert (typed.address.user, typed.address.host, typed.address.port) == (login, "1.1.1.3", 2222)


@pytest.mark.process
@pytest.mark.parametrize("login", REFUSED_LOGINS)
def test_a_login_that_ssh_refuses_is_an_error_of_its_host_only(home, login):
    path = home / "pools.yaml"
    path.write_text(f"p: {{identity_file: {home}/pool, hosts: [{{ip: 1.1.1.1, user: {json.dumps(login)}}}, 1.1.1.2]}}")
    found = inventory.load(path, home)
    assert [host.name for host in found.hosts] == ["1.1.1.2"]
    assert "is not a valid user and address" in found.unusable[0].why or "expected text" in found.unusable[0].why
    with pytest.raises(UsageError):
        inventory.reach(f"{login}@1.1.1.3", home / "none", home)


ENTRIES = """
ok: {{user: ann, identity_file: {home}/pool, hosts: [1.1.1.1, {{ip: 1.1.1.2, password: hunter2}}, 1.1.1.3, 1.1.1.3, 7]}}
words: {{password: hunter2, hosts: [2.2.2.1, 2.2.2.2]}}
keyless: {{identity_file: /no/such, hosts: [3.3.3.3]}}
homeless: {{identity_file: ~nosuchuser/key, hosts: [3.3.3.4]}}
joined: {{hosts: ["3.3.3.5:22"]}}
odd: {{hots: 1}}
12: {{hosts: [4.4.4.4]}}
last: {{identity_file: {home}/pool, hosts: [5.5.5.5]}}
"""


def test_an_unusable_entry_is_an_error_of_this_entry_only(home):
    path = home / "ssh_node_pools.yaml"
    path.write_text(ENTRIES.format(home=home))
    own = inventory.load(path, home)
    assert [host.place for host in own.hosts] == ["ok/1.1.1.1", "ok/1.1.1.3", "last/5.5.5.5"]
    assert [one.place for one in own.unusable] == [
        "ok/1.1.1.2",
        "ok/1.1.1.3",
        "ok/?",
        "words",
        "keyless/3.3.3.3",
        "homeless/3.3.3.4",
        "joined/3.3.3.5:22",
        "odd",
        "12",
    ]
    assert own.find("last/5.5.5.5").address.host == "5.5.5.5" and len(own.select("")) == 3
    assert [host.name for host in own.select("ok")] == ["1.1.1.1", "1.1.1.3"]
    for word, said in (
        ("ok/1.1.1.2", "passwords are not supported"),
        ("3.3.3.3", "private key not found: /no/such"),
        ("keyless", "private key not found"),
        ("words/2.2.2.1", "pool words: passwords"),
        ("odd", "unknown key 'hots'"),
    ):
        with pytest.raises(UsageError, match=said):
            own.select(word)
    with pytest.raises(UsageError, match="machine '9.9.9.9'"):
        own.find("9.9.9.9")


TWICE = """
a: {{identity_file: {home}/pool, hosts: [1.1.1.1, {{ip: 1.1.1.2, ip: 1.1.1.3}}, {{ip: 4, port: !!int ''}}, 1.1.1.5]}}
b: {{identity_file: {home}/pool, hosts: [2.2.2.1]}}
b: {{identity_file: {home}/pool, hosts: [2.2.2.2]}}
c: {{user: x, user: y, identity_file: {home}/pool, hosts: [3.3.3.1]}}
d: !!python/object/apply:os.system [id]
e: {{identity_file: {home}/pool, hosts: [5.5.5.1], labels: {{x: !no 1}}}}
f: {{identity_file: {home}/pool, hosts: [6.6.6.1]}}
"""


def test_an_entry_that_is_no_yaml_value_is_an_error_of_this_entry_only(home):
    path = home / "ssh_node_pools.yaml"
    path.write_text(TWICE.format(home=home))
    own = inventory.load(path, home)
    assert [host.place for host in own.hosts] == ["a/1.1.1.1", "a/1.1.1.5", "f/6.6.6.1"]
    assert [(one.place, one.why.removeprefix(f"{path}: pool {one.pool}")) for one in own.unusable] == [
        ("a/?", ", host ?: line 2: 'ip' is given twice"),
        (
            "a/?",
            ", host ?: line 2: this value cannot be read: IndexError('string index out of range')",
        ),
        ("b", ": 'b' is given twice"),
        ("c", ": line 5: 'user' is given twice"),
        (
            "d",
            ": line 6: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object/apply:os.system'",
        ),
        ("e", ": line 7: could not determine a constructor for the tag '!no'"),
    ]


def test_an_error_of_one_host_leaves_the_hosts_of_a_pool_with_a_merge_key(home):
    path = home / "ssh_node_pools.yaml"
    path.write_text(
        f"a: &a {{identity_file: {home}/pool, user: 0042, hosts: [1.1.1.1]}}\n"
        "b: {<<: *a, user: ann, hosts: [2.2.2.1, {ip: 2.2.2.2, ip: 2.2.2.3}]}\nc: {<<: *a, hosts: [3.3.3.1]}\n"
    )
    own = inventory.load(path, home)
    assert [f"{host.address.user}@{host.place}" for host in own.hosts] == [
        "0042@a/1.1.1.1",
        "ann@b/2.2.2.1",
        "0042@c/3.3.3.1",
    ]
    assert [one.why for one in own.unusable] == [f"{path}: pool b, host ?: line 2: 'ip' is given twice"]


def test_a_key_readable_by_others_is_an_error_of_its_entries_only(home):
    (home / "pool").chmod(0o644)
    path = home / "ssh_node_pools.yaml"
    pools = (("a", "pool", "1.1.1.1"), ("b", "alice", "2.2.2.2"))
    path.write_text("\n".join(f"{pool}: {{identity_file: {home}/{key}, hosts: [{ip}]}}" for pool, key, ip in pools))
    own = inventory.load(path, home)
    assert [host.place for host in own.hosts] == ["b/2.2.2.2"]
    (one,) = own.unusable
    why = f"host 1.1.1.1: key {home}/pool has mode 644, so other users can read the key; run: chmod 600 {home}/pool"
    assert one.why.endswith(why)
    (home / "pool").chmod(0o600)
    assert len(inventory.load(path, home).hosts) == 2


def test_the_error_for_a_missing_file_names_the_template(tmp_path):
    with pytest.raises(UsageError, match="copy ssh_node_pools.yaml.example to this path"):
        inventory.load(tmp_path / "none.yaml")


def test_the_shipped_example_is_read_once_its_key_exists(home):
    (home / "id_ed25519").touch(mode=0o600)
    text = (REPOSITORY / "ssh_node_pools.yaml.example").read_text().replace("~/.ssh/", f"{home}/")
    assert len(load(home, text)) >= 2


def test_a_machine_is_found_by_place_or_name_and_a_pool_by_name(home):
    hosts = load(home, "a: {hosts: [1.1.1.1, 1.1.1.2]}\nb: {hosts: [1.1.1.1]}")
    own = inventory.OwnMachines(hosts)
    assert own.find("1.1.1.2") == hosts[1] and own.find("b/1.1.1.1") == hosts[2]
    assert own.select("") == hosts and own.select("a") == hosts[:2]
    assert own.select("b/1.1.1.1") == hosts[2:]
    with pytest.raises(UsageError, match="several machines: a/1.1.1.1, b/1.1.1.1"):
        own.find("1.1.1.1")
    with pytest.raises(UsageError, match="machine '1.1.1.3' not found; available: .*pools: a, b"):
        own.select("1.1.1.3")


@pytest.mark.parametrize(
    ("word", "where"),
    [
        ("1.2.3.4", (getpass.getuser(), "1.2.3.4", 22)),
        ("mike@pod.example.com:2222", ("mike", "pod.example.com", 2222)),
        pytest.param("box", ("boxer", "9.9.9.9", 77), marks=[pytest.mark.process, pytest.mark.needs("ssh")]),
        ("ada@corp.example@1.2.3.4", ("ada@corp.example", "1.2.3.4", 22)),
        ("CORP\\ada@1.2.3.4:2222", ("CORP\\ada", "1.2.3.4", 2222)),
        ("[2001:db8::7]", (getpass.getuser(), "2001:db8::7", 22)),
        ("root@[::1]:2222", ("root", "::1", 2222)),
    ],
)
def test_an_address_names_a_machine_without_an_inventory(home, word, where):
    address = inventory.reach(word, home / "no.yaml", home).address
    assert (address.user, address.host, address.port) == where


@pytest.mark.parametrize("word", ["::1", "[::1", "[box]:22", "a b", "-oProxyCommand=x", "root@[::1]:x"])
def test_an_invalid_address_is_refused(home, word):
    with pytest.raises(UsageError, match="is not a machine"):
        inventory.reach(word, home / "no.yaml", home)


def test_the_file_of_the_checkout_comes_before_skypilots_file(tmp_path):
    checkout, home = tmp_path / "checkout", tmp_path / "home"
    checkout.mkdir()
    own, shared = checkout / "ssh_node_pools.yaml", home / ".sky/ssh_node_pools.yaml"
    environ = {"HOME": str(home)}
    assert Settings.load(checkout, environ=environ).pools == own
    shared.parent.mkdir(parents=True)
    shared.touch()
    assert Settings.load(checkout, environ=environ).pools == shared
    own.touch()
    assert Settings.load(checkout, environ=environ).pools == own
    assert Settings.load(checkout, environ={**environ, "SLIPWAY_POOLS": "/x.yaml"}).pools == Path("/x.yaml")


# Terraform.

OUTPUTS = {
    "server_ip": {"sensitive": False, "type": "string", "value": "5.6.7.8"},
    "nodes": {"value": ["10.0.0.1", "node2.example.com"]},
    "by_name": {"value": {"web 1": "10.0.0.3", "v6": "2001:db8::1"}},
    "again": {"value": "5.6.7.8"},
    "image": {"value": "debian-12"},
    "network": {"value": "10.0.0.0/16"},
    "mixed": {"value": ["10.0.0.9", "a name"]},
    "count": {"value": 3},
    "nothing": {"value": []},
}
FOUND = ["5.6.7.8", "10.0.0.1", "node2.example.com", "10.0.0.3", "2001:db8::1"]


@pytest.fixture
def terraform(tmp_path):
    path = tmp_path / "terraform.json"
    path.write_text(json.dumps(OUTPUTS))
    return path


@pytest.mark.parametrize(
    "wrap",
    [
        lambda outputs: outputs,
        lambda outputs: {"version": 4, "terraform_version": "1.9.0", "outputs": outputs, "resources": []},
        lambda outputs: {"format_version": "1.0", "values": {"outputs": outputs, "root_module": {}}},
    ],
    ids=["output -json", "state file", "show -json"],
)
def test_addresses_are_found_in_every_form_of_terraform_json(terraform, wrap):
    terraform.write_text(json.dumps(wrap(OUTPUTS)))
    found = pool_import.addresses(terraform)
    assert [one.address for one in found] == FOUND
    assert [one.origin for one in found] == ["server_ip", "nodes.0", "nodes.1", "by_name.web-1", "by_name.v6"]
    assert [one.address for one in pool_import.addresses(terraform, "nodes")] == FOUND[1:3]


@pytest.mark.parametrize(
    ("text", "only", "said"),
    [
        ("{", "", "write the file with: terraform output -json"),
        ("[]", "", "no output holds an address"),
        ('{"image": {"value": "debian"}}', "", "no output holds an address, a list or a map of addresses (image)"),
        (json.dumps(OUTPUTS), "node", "output 'node' does not exist; available: server_ip"),
    ],
)  # fmt: skip
def test_a_file_without_addresses_is_refused(terraform, text, only, said):
    terraform.write_text(text)
    with pytest.raises(UsageError) as refused:
        pool_import.addresses(terraform, only)
    assert said in str(refused.value)


def test_an_import_writes_a_readable_pool_and_a_second_import_changes_nothing(home, terraform):
    path = home / "ssh_node_pools.yaml"
    found = pool_import.addresses(terraform)
    for number_new in (5, 0):
        plan = pool_import.plan(path, "tf", found, user="root", key=f"{home}/pool")
        assert (len(plan.new), len(plan.known)) == (number_new, 5 - number_new)
        pool_import.write(plan)
    hosts = inventory.load(path, home).hosts
    assert [host.address.host for host in hosts] == FOUND and {host.address.user for host in hosts} == {"root"}


@pytest.mark.parametrize(
    "hosts",
    [
        "  hosts:\n    # the first\n    - 5.6.7.8  # old\n    - ip: 1.1.1.1\n      user: root\n\n      # why\n",
        "  hosts:\n  - ip: 1.1.1.1\n    user: root\n  - 5.6.7.8\n  user: x\n",
        "  hosts:\n    - {ip: 1.1.1.1, user: root}\n    - 5.6.7.8",
    ],
)
def test_an_import_into_a_pool_only_adds_lines(home, terraform, hosts):
    path = home / "ssh_node_pools.yaml"
    before = f"# mine\ntf:\n{hosts}\n# after\nother:\n  hosts: [2.2.2.2]  # kept\n"
    path.write_text(before)
    plan = pool_import.plan(path, "tf", pool_import.addresses(terraform))
    assert path.read_text() == before
    pool_import.write(plan)
    after = path.read_text().splitlines()
    added = [line for line in after if "# nodes." in line or "# by_name." in line]
    assert len(added) == 4 and [line for line in after if line not in added] == before.splitlines()
    assert [host.name for host in inventory.load(path, home).hosts if host.pool == "tf"][-4:] == FOUND[1:]


@pytest.mark.parametrize("text", ["tf: {hosts: [1.1.1.1]}\n", "tf:\n  hosts: [1.1.1.1]\n", "tf:\n  user: x\n"])
def test_a_list_on_one_line_stays_unchanged(home, terraform, text):
    path = home / "ssh_node_pools.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match="the hosts of tf are not one per line; add the hosts by hand, or choose"):
        pool_import.plan(path, "tf", pool_import.addresses(terraform))
