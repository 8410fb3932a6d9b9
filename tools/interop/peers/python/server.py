"""gRPC's xDS interop server on grpcio: answers with its host's name, and behaves as a call's `rpc-behavior` asks.

Without `--secure_mode` all services are on `--port`, on one event loop, so that thousands of calls can stay open. With it
TestService is on `--port` with what the control plane says, on threads, because grpcio's servers on an event loop know
no xDS; health and admin services are on `--maintenance_port`, in the clear. Streaming methods are UNIMPLEMENTED.
"""

import asyncio
import socket
import sys
from concurrent import futures

import grpc
import grpc_admin
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

import flags
import testing_pb2 as pb
import testing_pb2_grpc as services
from behavior import Refused, behave

FLAGS = {
    "port": 8080,
    "maintenance_port": 8081,
    "server_id": "python_server",
    "host_name_override": "",
    "secure_mode": False,
    # Set to anything they are an error: grpcio has no way for a server to report load.
    "load_utilization": "",
    "load_qps": "",
}

# The port is this server's alone: without it a second server could share it unseen.
ALONE = [("grpc.so_reuseport", 0)]

# Calls that an xDS server can work on at a time.
THREADS = 100


class TestService(services.TestServiceServicer):
    def __init__(self, hostname, server_id):
        self.hostname = hostname
        self.server_id = server_id

    async def EmptyCall(self, request, context):
        await self.admit(context)
        return pb.Empty()

    async def UnaryCall(self, request, context):
        await self.admit(context)
        return self.response(request)

    async def admit(self, context):
        try:
            await behave(context.invocation_metadata(), self.hostname)
        except Refused as refused:
            # Without headers, because a client that has seen headers does not retry.
            await context.abort(refused.code, str(refused))
        await context.send_initial_metadata((("hostname", self.hostname),))

    def response(self, request):
        response = pb.SimpleResponse(server_id=self.server_id, hostname=self.hostname)
        if request.response_size > 0:
            response.payload.body = bytes(request.response_size)
        return response


class ThreadedTestService(services.TestServiceServicer):
    """The same on threads; the behaviors run on the loop."""

    def __init__(self, service, loop):
        self.service = service
        self.loop = loop

    def EmptyCall(self, request, context):
        self.admit(context)
        return pb.Empty()

    def UnaryCall(self, request, context):
        self.admit(context)
        return self.service.response(request)

    def admit(self, context):
        hostname = self.service.hostname
        behaving = asyncio.run_coroutine_threadsafe(behave(context.invocation_metadata(), hostname), self.loop)
        # A call that ends early gives its thread back.
        context.add_callback(behaving.cancel)
        try:
            behaving.result()
        except Refused as refused:
            # With headers: the process would end, because grpcio 1.85's xDS server cannot send a status alone.
            context.send_initial_metadata(())
            context.abort(refused.code, str(refused))
        except futures.CancelledError:
            context.abort(grpc.StatusCode.CANCELLED, "the client has gone away")
        context.send_initial_metadata((("hostname", hostname),))


class UpdateHealthService(services.XdsUpdateHealthServiceServicer):
    def __init__(self, health_service):
        self.health = health_service

    async def SetServing(self, request, context):
        await self.health.set("", health_pb2.HealthCheckResponse.SERVING)
        return pb.Empty()

    async def SetNotServing(self, request, context):
        await self.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        return pb.Empty()


async def main():
    options = flags.parse(sys.argv[1:], FLAGS)
    if options.load_utilization or options.load_qps:
        flags.fail("--load_utilization, --load_qps: gRPC for Python has no way for a server to report load")
    service = TestService(options.host_name_override or socket.gethostname(), options.server_id)
    main_server = grpc.aio.server(options=ALONE)
    await add_maintenance(main_server)
    if options.secure_mode:
        main_server.add_insecure_port(f"0.0.0.0:{options.maintenance_port}")
        threaded = ThreadedTestService(service, asyncio.get_running_loop())
        xds_server = grpc.server(futures.ThreadPoolExecutor(THREADS), options=ALONE, xds=True)
        services.add_TestServiceServicer_to_server(threaded, xds_server)
        credentials = grpc.xds_server_credentials(grpc.insecure_server_credentials())
        port = options.port or free_port()
        xds_server.add_secure_port(f"0.0.0.0:{port}", credentials)
        xds_server.start()
    else:
        services.add_TestServiceServicer_to_server(service, main_server)
        port = main_server.add_insecure_port(f"0.0.0.0:{options.port}")
    await main_server.start()
    print(f"listening on {port}", flush=True)
    await main_server.wait_for_termination()


def free_port():
    """A port that nobody uses. An xDS server does not tell which one it has been given for port 0."""
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        return probe.getsockname()[1]


async def add_maintenance(server):
    health_service = health.aio.HealthServicer()
    await health_service.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    services.add_XdsUpdateHealthServiceServicer_to_server(UpdateHealthService(health_service), server)
    grpc_admin.add_admin_servicers(server)


if __name__ == "__main__":
    asyncio.run(main())
