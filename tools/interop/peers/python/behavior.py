"""What a call asks of its server by the metadata `rpc-behavior`: to sleep, to stay open, to fail, to fail until a retry.

Several behaviors are separated by commas and done in turn; one that begins with `hostname=NAME ` is for that host only.
"""

import asyncio

import grpc

CODES = {code.value[0]: code for code in grpc.StatusCode}


class Refused(Exception):
    """The call is to end with a status."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


async def behave(metadata, hostname):
    """Comes back when the call may be answered; `Refused` if it is to fail."""
    metadata = list(metadata)
    for key, value in metadata:
        if key == "rpc-behavior":
            for behavior in filter(None, map(str.strip, value.split(","))):
                if behavior.startswith("hostname="):
                    host, _, behavior = behavior.removeprefix("hostname=").partition(" ")
                    if host != hostname:
                        continue
                if await follow(behavior, dict(metadata)):
                    return


async def follow(behavior, metadata):
    """Does one behavior. True if the call may be answered without a look at the others."""
    if behavior == "keep-open":
        await asyncio.Event().wait()
    elif behavior.startswith("sleep-"):
        await asyncio.sleep(number(behavior, "sleep-"))
    elif behavior.startswith("error-code-"):
        code = CODES.get(number(behavior, "error-code-"))
        if code is None:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f"rpc-behavior {behavior!r}: there is no such status")
        if code is grpc.StatusCode.OK:
            return True
        raise Refused(code, f"rpc-behavior {behavior!r}")
    elif behavior.startswith("succeed-on-retry-attempt-"):
        attempt = number(behavior, "succeed-on-retry-attempt-")
        return metadata.get("grpc-previous-rpc-attempts", "0") == str(attempt)
    else:
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f"rpc-behavior {behavior!r}: not known")
    return False


def number(behavior, prefix):
    digits = behavior.removeprefix(prefix)
    if not digits.isdecimal():
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f"rpc-behavior {behavior!r}: expected a number after {prefix!r}")
    return int(digits)
