"""The start of `python -m packs.page.views`: Ctrl-C ends the process without a traceback, also during the imports."""

import sys

try:
    from packs.page.views import server

    server.main()
except KeyboardInterrupt:
    sys.exit(130)
