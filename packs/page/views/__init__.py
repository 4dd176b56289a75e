"""The page of `inv ui`: a live view of the commands' data, in a local browser."""
