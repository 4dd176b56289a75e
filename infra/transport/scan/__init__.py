"""The search for secrets in files that leave this machine: by name, by form, and by the values of own keys."""
