"""What the Python programs read, count and do, without a network.

After `install OUT`: PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=OUT OUT/venv/bin/python -m unittest discover -s tests
"""

import asyncio
import contextlib
import io
import unittest

import grpc

import behavior
import flags
import testing_pb2 as pb
from client import Outcome
from stats import Stats

DEFAULTS = {"qps": 1, "server": "", "secure_mode": False}


class Flags(unittest.TestCase):
    def parse(self, *arguments):
        self.errors = io.StringIO()
        with contextlib.redirect_stderr(self.errors):
            return flags.parse(arguments, DEFAULTS)

    def test_values_come_after_an_equals_sign_or_as_the_next_argument(self):
        for arguments in (["--qps=5", "--server=a=b"], ["--qps", "5", "--server", "a=b"], ["-qps=5", "-server", "a=b"]):
            options = self.parse(*arguments)
            self.assertEqual((options.qps, options.server), (5, "a=b"))

    def test_a_boolean_needs_no_value(self):
        for arguments in (["--secure_mode"], ["--secure_mode=True"], ["--secure_mode", "true"], ["--secure_mode", "--qps=1"]):
            self.assertTrue(self.parse(*arguments).secure_mode)
        self.assertFalse(self.parse("--secure_mode", "false").secure_mode)

    def test_unknown_flags_are_warned_about_once_and_left_out_with_their_values(self):
        options = self.parse("--nonsense", "7", "--other=8", "--qps=2")
        self.assertEqual(options.qps, 2)
        self.assertEqual(self.errors.getvalue().splitlines(), ["--nonsense: unknown flag, ignored", "--other: unknown flag, ignored"])

    def test_a_value_that_cannot_be_read_ends_the_program(self):
        with self.assertRaises(SystemExit) as ended:
            self.parse("--qps=many")
        self.assertEqual(ended.exception.code, 2)
        self.assertIn("--qps: expected a value of type int, found 'many'", self.errors.getvalue())


class Behavior(unittest.TestCase):
    def outcome(self, *values, attempts=None):
        metadata = [("rpc-behavior", value) for value in values]
        if attempts is not None:
            metadata.append(("grpc-previous-rpc-attempts", attempts))
        try:
            return asyncio.run(behavior.behave(metadata, "me"))
        except behavior.Refused as refused:
            return refused.code

    def test_one_after_the_other(self):
        self.assertIsNone(self.outcome())
        self.assertIsNone(self.outcome("sleep-0"))
        self.assertEqual(self.outcome("sleep-0, error-code-14"), grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(self.outcome("sleep-0", "error-code-7"), grpc.StatusCode.PERMISSION_DENIED)
        self.assertIsNone(self.outcome("error-code-0,keep-open"))

    def test_a_call_may_be_kept_open(self):
        async def is_open():
            waiting = asyncio.create_task(behavior.behave([("rpc-behavior", "sleep-0,keep-open")], "me"))
            for _ in range(100):
                await asyncio.sleep(0)
            return waiting.cancel()

        self.assertTrue(asyncio.run(is_open()))

    def test_for_one_host_only(self):
        self.assertEqual(self.outcome("hostname=me error-code-5"), grpc.StatusCode.NOT_FOUND)
        self.assertIsNone(self.outcome("hostname=you error-code-5"))

    def test_a_retry_succeeds_at_its_attempt(self):
        asked = "succeed-on-retry-attempt-2,error-code-14"
        self.assertEqual(self.outcome(asked), grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(self.outcome(asked, attempts="1"), grpc.StatusCode.UNAVAILABLE)
        self.assertIsNone(self.outcome(asked, attempts="2"))

    def test_what_is_not_understood_is_refused(self):
        for value in ("dance", "sleep-x", "error-code-99", "error-code-", "hostname=me"):
            self.assertEqual(self.outcome(value), grpc.StatusCode.INVALID_ARGUMENT, value)


class Counting(unittest.IsolatedAsyncioTestCase):
    async def test_a_watch_counts_the_next_calls_that_start(self):
        stats = Stats()
        earlier = stats.started("UnaryCall")
        watching = asyncio.create_task(stats.watch(pb.LoadBalancerStatsRequest(num_rpcs=3, timeout_sec=30)))
        await asyncio.sleep(0)
        calls = [stats.started(kind) for kind in ("EmptyCall", "UnaryCall", "UnaryCall", "UnaryCall")]
        stats.ended("UnaryCall", earlier, Outcome(0, "too early"))
        stats.ended("UnaryCall", calls[3], Outcome(0, "too late"))
        stats.ended("UnaryCall", calls[2], Outcome(0, "a"))
        stats.ended("UnaryCall", calls[1], Outcome(14))
        stats.ended("EmptyCall", calls[0], Outcome(0, "a"))
        response = await watching
        self.assertEqual(dict(response.rpcs_by_peer), {"a": 2})
        self.assertEqual(dict(response.rpcs_by_method["EmptyCall"].rpcs_by_peer), {"a": 1})
        self.assertEqual(response.num_failures, 1)
        self.assertEqual(stats.watches, [])

    async def test_calls_that_have_not_ended_in_time_are_failures(self):
        stats = Stats()
        watching = asyncio.create_task(stats.watch(pb.LoadBalancerStatsRequest(num_rpcs=3, timeout_sec=0)))
        await asyncio.sleep(0)
        self.assertEqual((await watching).num_failures, 3)

    async def test_metadata_is_told_when_it_is_asked_for(self):
        stats = Stats()
        watching = asyncio.create_task(stats.watch(pb.LoadBalancerStatsRequest(num_rpcs=1, timeout_sec=30, metadata_keys=["X-One"])))
        await asyncio.sleep(0)
        outcome = Outcome(0, "a", [("x-one", "1"), ("x-two", "2")], [("x-one", "3")])
        stats.ended("EmptyCall", stats.started("EmptyCall"), outcome)
        [rpc] = (await watching).metadatas_by_peer["a"].rpc_metadata
        self.assertEqual([(entry.key, entry.value, entry.type) for entry in rpc.metadata], [("x-one", "1", 1), ("x-one", "3", 2)])

    async def test_totals(self):
        stats = Stats()
        for code in (0, 14, 14):
            stats.ended("UnaryCall", stats.started("UnaryCall"), Outcome(code, "a"))
        stats.started("EmptyCall")
        self.assertEqual(stats.totals.num_rpcs_started_by_method, {"UNARY_CALL": 3, "EMPTY_CALL": 1})
        self.assertEqual(stats.totals.num_rpcs_failed_by_method, {"UNARY_CALL": 2})
        self.assertEqual(stats.totals.stats_per_method["UNARY_CALL"].result, {0: 1, 14: 2})


if __name__ == "__main__":
    unittest.main()
