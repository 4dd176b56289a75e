"""Scan for secrets in files before an upload: by file name, by form, and by the values of the installation's keys."""
