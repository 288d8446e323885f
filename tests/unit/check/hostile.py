"""Ten megabytes of anything: what a reader of JSON may be given by mistake or in malice."""

from mindie_kvpool_plugin.check.text.load import MAX_BYTES

MIB = 1 << 20
HOSTILE = {
    "brackets": b"[" * MAX_BYTES,
    "blanks": b" " * MAX_BYTES,
    "open_string": b'{"a": "' + b"a" * (MAX_BYTES - 10),
    "empty_objects": b'{"a": [' + b"{}," * (3 * MIB) + b"{}]}",
    "integers": b'{"BackendConfig": {"npuDeviceIds": [[' + b"1," * (4 * MIB) + b"1]]}}",
    "short_lists": b'{"BackendConfig": {"npuDeviceIds": [' + b",".join([b"[" + b"1," * 1000 + b"1]"] * 5000) + b"]}}",
    "keys": b"{" + b",".join(b'"k%d":1' % i for i in range(500_000)) + b"}",
    "digits": b'{"a": ' + b"1" * (MAX_BYTES - 10) + b"}",
    "nul": b"\0" * MAX_BYTES,
    "not_utf8": b"\xff" * MAX_BYTES,
    "comments": b"/*" * (MAX_BYTES // 2),
    "quotes": b'"{"a' * (MAX_BYTES // 4),
    "backslashes": b'{"a": "' + b"\\" * (MAX_BYTES - 10),
    "line_feeds": b"\n" * MAX_BYTES,
    "wide": "，".encode() * (MAX_BYTES // 3),
    "deep": b'{"a":' * MIB + b"1" + b"}" * MIB,
    "deep_known": b'{"BackendConfig":' * 2000 + b"1" + b"}" * 2000,
    "plugin_text": b'{"BackendConfig":{"ModelDeployConfig":{"ModelConfig":[{"plugin_params":"{\\"plugin_type\\":\\"'
    + b"a," * (4 * MIB)
    + b'\\"}"}]}}}',
}
