"""Errors a user can meet.  Start-up raises them; the hot path returns results and counts.

KvPoolError
├── ConfigError       a configuration file says something that cannot work
├── DeviceError       the device's runtime refused a copy or memory for it
├── HostCompatError   the installed MindIE-LLM, or the way it is run, does not fit this package
└── PoolError         the pool cannot be opened or memory cannot be registered with it
"""

from __future__ import annotations


class KvPoolError(Exception):
    """Base of all errors this package raises on purpose; its text names the thing, the value and the fix."""


class ConfigError(KvPoolError):
    """A configuration file cannot work."""


class DeviceError(KvPoolError):
    """The device's runtime refused a copy between blocks and host memory, or memory for it."""


class HostCompatError(KvPoolError):
    """The installed MindIE-LLM, or the way it is run, does not fit this package."""


class PoolError(KvPoolError):
    """The pool cannot be opened, or memory cannot be registered with it."""
