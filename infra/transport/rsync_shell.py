"""The remote shell of our own rsync: it hands rsync's pipes to the process that has the connection, and waits.

That process holds the other end of the socket whose number is the first word; rsync adds the host and the command. Run
by its path: standard library only, no import of ours.
"""

import socket
import sys

HOST = "pod"  # stands for the machine at the other end of the connection

if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as owner:
        socket.send_fds(owner, [" ".join(sys.argv[sys.argv.index(HOST) + 1 :]).encode()], [0, 1])
        owner.shutdown(socket.SHUT_WR)
        owner.recv(1)  # until it lets go
