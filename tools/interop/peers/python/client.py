"""gRPC's xDS interop client on grpcio: calls a target at a steady rate and tells a driver where the calls went.

All calls are tasks of one event loop, so that thousands can be in flight. The stats port serves the totals, the
configuration of calls, and grpcio's admin services (CSDS and channelz). A policy of one's own cannot be written in
Python: `test.RpcBehaviorLoadBalancer` is not there.
"""

import asyncio
import os
import sys
from dataclasses import dataclass, field

import grpc
import grpc_admin

import flags
import testing_pb2 as pb
import testing_pb2_grpc as services
from stats import TOTALS, Stats

FLAGS = {
    "server": "localhost:8080",
    "qps": 1,
    "num_channels": 1,
    "rpc": "UnaryCall",
    "metadata": "",
    "stats_port": 8081,
    "rpc_timeout_sec": 20,
    "fail_on_failed_rpc": False,
    "fail_on_failed_rpcs": False,
    "print_response": False,
    "expect_status": "OK",
    "secure_mode": False,
}

# A client that is this far behind its rate does not catch up: a burst would say nothing about balancing.
LATE = 1.0


@dataclass
class Plan:
    """What every tick calls: metadata by kind of call, and the deadline in seconds (`None`: the command line's)."""

    metadata: dict
    timeout: int | None = None


@dataclass
class Outcome:
    """How a call ended. `peer` is the server that answered it; a call that failed has none."""

    code: int
    peer: str = ""
    headers: list = field(default_factory=list)
    trailers: list = field(default_factory=list)
    message: str = ""


class Client:
    def __init__(self, options, plan):
        self.options = options
        self.plan = plan
        self.stats = Stats()
        self.expected = status_code(options.expect_status)
        self.has_succeeded = False
        # The loop itself holds tasks only weakly.
        self.in_flight = set()

    async def run(self):
        stubs = [services.TestServiceStub(channel(self.options)) for _ in range(self.options.num_channels)]
        loop = asyncio.get_running_loop()
        interval = 1 / (self.options.qps * len(stubs))
        due = loop.time()
        while True:
            for stub in stubs:
                for kind, metadata in self.plan.metadata.items():
                    self.start(stub, kind, metadata)
                due = max(due + interval, loop.time() - LATE)
                await asyncio.sleep(due - loop.time())

    def start(self, stub, kind, metadata):
        interested = self.stats.started(kind)
        timeout = self.plan.timeout
        if timeout is None and ("rpc-behavior", "keep-open") not in metadata:
            timeout = self.options.rpc_timeout_sec
        if kind == "EmptyCall":
            call = stub.EmptyCall(pb.Empty(), metadata=metadata, timeout=timeout)
        else:
            call = stub.UnaryCall(pb.SimpleRequest(fill_server_id=True), metadata=metadata, timeout=timeout)
        task = asyncio.get_running_loop().create_task(self.finish(call, kind, interested))
        self.in_flight.add(task)
        task.add_done_callback(self.in_flight.discard)

    async def finish(self, call, kind, interested):
        outcome = await outcome_of(call)
        self.stats.ended(kind, interested, outcome)
        if self.options.print_response:
            print(describe(kind, outcome), flush=True)
        if outcome.code == self.expected:
            self.has_succeeded = True
        elif self.has_succeeded and (self.options.fail_on_failed_rpc or self.options.fail_on_failed_rpcs):
            print(f"{describe(kind, outcome)}, after others had succeeded", file=sys.stderr, flush=True)
            os._exit(1)


class StatsService(services.LoadBalancerStatsServiceServicer):
    def __init__(self, client):
        self.client = client

    async def GetClientStats(self, request, context):
        return await self.client.stats.watch(request)

    async def GetClientAccumulatedStats(self, request, context):
        return self.client.stats.totals


class ConfigureService(services.XdsUpdateClientConfigureServiceServicer):
    def __init__(self, client):
        self.client = client

    async def Configure(self, request, context):
        kinds = {}
        for number in request.types:
            if number not in KINDS:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"types: expected EMPTY_CALL or UNARY_CALL, found {number}")
            kinds[KINDS[number]] = tuple((entry.key.lower(), entry.value) for entry in request.metadata if entry.type == number)
        self.client.plan = Plan(kinds, request.timeout_sec or None)
        return pb.ClientConfigureResponse()


KINDS = {pb.ClientConfigureRequest.EMPTY_CALL: "EmptyCall", pb.ClientConfigureRequest.UNARY_CALL: "UnaryCall"}


def channel(options):
    if options.secure_mode:
        fallback = grpc.experimental.insecure_channel_credentials()
        return grpc.aio.secure_channel(options.server, grpc.xds_channel_credentials(fallback))
    return grpc.aio.insecure_channel(options.server)


async def outcome_of(call):
    try:
        response = await call
        headers = list(await call.initial_metadata() or ())
        trailers = list(await call.trailing_metadata() or ())
        peer = dict(headers).get("hostname") or getattr(response, "hostname", "")
        return Outcome(0, peer, headers, trailers)
    except grpc.aio.AioRpcError as error:
        return Outcome(error.code().value[0], message=error.details() or "")


def describe(kind, outcome):
    if outcome.code:
        return f"{kind} failed with status {outcome.code}: {outcome.message}"
    # Drivers look for these words.
    return f"Greeting: Hello world, this is {outcome.peer}, from {kind}"


def status_code(text):
    """The number of a status that is given by number or name."""
    for code in grpc.StatusCode:
        if text.upper() == code.name or text == str(code.value[0]):
            return code.value[0]
    flags.fail(f"--expect_status: expected the name or number of a status, found {text!r}")


def command_line_plan(options):
    metadata = {}
    for kind in (options.rpc or "UnaryCall").split(","):
        if kind not in TOTALS:
            flags.fail(f"--rpc: expected EmptyCall or UnaryCall, found {kind!r}")
        metadata[kind] = ()
    for entry in filter(None, options.metadata.split(",")):
        kind, *pair = entry.split(":", 2)
        if kind not in TOTALS or len(pair) != 2:
            flags.fail(f"--metadata: expected EmptyCall:key:value or UnaryCall:key:value, found {entry!r}")
        if kind in metadata:
            metadata[kind] += ((pair[0].lower(), pair[1]),)
    return Plan(metadata)


async def main():
    options = flags.parse(sys.argv[1:], FLAGS)
    if options.qps < 1 or options.num_channels < 1:
        flags.fail(f"expected --qps and --num_channels of at least 1, found {options.qps} and {options.num_channels}")
    client = Client(options, command_line_plan(options))
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    services.add_LoadBalancerStatsServiceServicer_to_server(StatsService(client), server)
    services.add_XdsUpdateClientConfigureServiceServicer_to_server(ConfigureService(client), server)
    grpc_admin.add_admin_servicers(server)
    port = server.add_insecure_port(f"0.0.0.0:{options.stats_port}")
    await server.start()
    print(f"listening on {port}", flush=True)
    await client.run()


if __name__ == "__main__":
    asyncio.run(main())
