"""Fill the disk of the working folder; then exit with an error, or with `--stays` take all new free space."""

import sys
import time

with open("filling", "wb", buffering=0) as file:
    while True:
        try:
            file.write(b"x" * (1 << 16))
        except OSError:
            if "--stays" not in sys.argv:
                raise
            time.sleep(0.001)
