"""The memory terms: bytes on a device and on a host, one subject a file."""
