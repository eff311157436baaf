"""A user's module that cannot be imported on this machine."""

message = "the vendor's library wants another driver"
raise RuntimeError(message)
