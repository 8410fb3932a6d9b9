"""What became of a client's calls: the totals since its start, and blocks of calls that somebody watches.

A watch counts the next N calls that start after it began, whenever they end. Everything happens on one event loop.
"""

import asyncio
import base64

import testing_pb2 as pb


class Stats:
    def __init__(self):
        self.totals = pb.LoadBalancerAccumulatedStatsResponse()
        self.watches = []

    def started(self, kind):
        """Counts a call of `kind` (`EmptyCall`, `UnaryCall`); the answer is those that want to know how it ends."""
        name = TOTALS[kind]
        self.totals.num_rpcs_started_by_method[name] += 1
        self.totals.stats_per_method[name].rpcs_started += 1
        interested = [watch for watch in self.watches if watch.to_start > 0]
        for watch in interested:
            watch.to_start -= 1
        return interested

    def ended(self, kind, interested, outcome):
        name = TOTALS[kind]
        self.totals.stats_per_method[name].result[outcome.code] += 1
        by_result = self.totals.num_rpcs_failed_by_method if outcome.code else self.totals.num_rpcs_succeeded_by_method
        by_result[name] += 1
        for watch in interested:
            watch.ended(kind, outcome)

    async def watch(self, request):
        """The next `request.num_rpcs` calls, or what has ended of them after `request.timeout_sec`."""
        watch = Watch(request)
        self.watches.append(watch)
        try:
            await asyncio.wait_for(watch.done.wait(), request.timeout_sec)
        except asyncio.TimeoutError:
            pass
        finally:
            self.watches.remove(watch)
        return watch.response()


class Watch:
    def __init__(self, request):
        self.to_start = request.num_rpcs
        self.to_end = request.num_rpcs
        self.keys = {key.strip().lower() for key in request.metadata_keys}
        self.counts = pb.LoadBalancerStatsResponse()
        self.done = asyncio.Event()
        if self.to_end <= 0:
            self.done.set()

    def ended(self, kind, outcome):
        if outcome.peer:
            self.counts.rpcs_by_peer[outcome.peer] += 1
            self.counts.rpcs_by_method[kind].rpcs_by_peer[outcome.peer] += 1
            self.keep_metadata(outcome)
        else:
            self.counts.num_failures += 1
        self.to_end -= 1
        if self.to_end == 0:
            self.done.set()

    def keep_metadata(self, outcome):
        if not self.keys:
            return
        rpc = self.counts.metadatas_by_peer[outcome.peer].rpc_metadata.add()
        for type_, metadata in ((pb.LoadBalancerStatsResponse.INITIAL, outcome.headers), (pb.LoadBalancerStatsResponse.TRAILING, outcome.trailers)):
            for key, value in metadata:
                if "*" in self.keys or key in self.keys:
                    text = base64.b64encode(value).decode() if isinstance(value, bytes) else value
                    rpc.metadata.add(key=key, value=text, type=type_)

    def response(self):
        response = pb.LoadBalancerStatsResponse()
        response.CopyFrom(self.counts)
        response.num_failures += max(self.to_end, 0)
        return response


# The names of the kinds in the totals.
TOTALS = {"EmptyCall": "EMPTY_CALL", "UnaryCall": "UNARY_CALL"}
