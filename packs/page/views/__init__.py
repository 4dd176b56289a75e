"""The page of `inv ui`: what the commands show, live in a browser of this machine."""
