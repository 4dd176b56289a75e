"""Start script of a container whose image is the user's: installs and starts sshd, and installs Python for the agent.

The script uses the package manager of the image. A session of sshd gets the search paths of the image, such as
`/opt/conda/bin`. A container without root, without a package manager or without network gets no sshd, and the boot of
the pod fails after the usual time.
"""

IN_REHEARSAL = "SLIPWAY_IN_REHEARSAL"  # set in rehearsed pods, which are folders of this machine with their own sshd
PATHS = "PATH LD_LIBRARY_PATH LIBRARY_PATH CUDA_HOME PYTHONPATH VIRTUAL_ENV CONDA_PREFIX"
START_SSHD = f"""\
[ -z "${{{IN_REHEARSAL}:-}}" ] || exit 0
""" + """\
lacks() { ! command -v "$1" >/dev/null 2>&1 && [ ! -x "/usr/sbin/$1" ]; }
if lacks sshd || lacks python3 || lacks bash || lacks curl; then
    if command -v apt-get >/dev/null 2>&1; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q
        apt-get install -q -y --no-install-recommends openssh-server python3 python3-venv bash curl ca-certificates git
    elif command -v dnf >/dev/null 2>&1; then
        dnf install -y openssh-server python3 bash curl git
    elif command -v yum >/dev/null 2>&1; then
        yum install -y openssh-server python3 bash curl git
    elif command -v zypper >/dev/null 2>&1; then
        zypper --non-interactive install openssh python3 bash curl git
    elif command -v apk >/dev/null 2>&1; then
        apk add --no-cache openssh-server python3 bash curl git
    fi
fi
mkdir -p "$HOME/.ssh" /run/sshd
chmod 700 "$HOME/.ssh"
printf '%s\\n' "$PUBLIC_KEY" >> "$HOME/.ssh/authorized_keys"
chmod 600 "$HOME/.ssh/authorized_keys"
ssh-keygen -A
# An unprivileged container may not set the login id, and a failed step of PAM ends the session.
[ ! -w /etc/pam.d/sshd ] || sed -i 's/required\\(.*pam_loginuid\\)/optional\\1/' /etc/pam.d/sshd
sshd=$(command -v sshd || echo /usr/sbin/sshd)
paths=
for name in """ + PATHS + """; do
    eval "value=\\${$name:-}"
    case $value in '' | *[!A-Za-z0-9_./:+-]*) ;; *) paths="$paths $name=$value" ;; esac
done
set -- -D -e -o PermitRootLogin=prohibit-password
if "$sshd" -t "$@" -o "SetEnv=${paths# }" 2>/dev/null; then set -- "$@" -o "SetEnv=${paths# }"; fi
exec "$sshd" "$@"
"""  # fmt: skip
