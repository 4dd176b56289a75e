"""Remote-shell program for the local rsync: passes rsync's pipes to the process with the connection, and waits.

The first argument is the number of a socket to the owning process; rsync appends the host and the command. rsync starts
this file by path, so the file uses the standard library only.
"""

import socket
import sys

HOST = "pod"  # placeholder for the machine at the other end of the connection

if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as owner:
        socket.send_fds(owner, [" ".join(sys.argv[sys.argv.index(HOST) + 1 :]).encode()], [0, 1])
        owner.shutdown(socket.SHUT_WR)
        owner.recv(1)  # blocks until the owner closes the socket
