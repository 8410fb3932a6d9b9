// What the Node.js programs read, count and do, without a network.
//
// After `install OUT`: PEER=OUT node --test tests
'use strict';

const assert = require('assert');
const path = require('path');
const test = require('node:test');

const peer = name => require(path.resolve(process.env.PEER, name));
const grpc = peer('node_modules/@grpc/grpc-js');
const { behave } = peer('behavior.js');
const flags = peer('flags.js');
const messages = peer('messages.js');
const policy = peer('policy.js');
const { Stats } = peer('stats.js');

const DEFAULTS = { qps: 1, server: '', secure_mode: false };

test('values come after an equals sign or as the next argument', () => {
  for (const args of [['--qps=5', '--server=a=b'], ['--qps', '5', '--server', 'a=b'], ['-qps=5', '-server', 'a=b']]) {
    assert.deepStrictEqual(flags.parse(args, DEFAULTS), { qps: 5, server: 'a=b', secure_mode: false });
  }
});

test('a boolean needs no value', () => {
  for (const args of [['--secure_mode'], ['--secure_mode=True'], ['--secure_mode', 'true'], ['--secure_mode', '--qps=1']]) {
    assert.strictEqual(flags.parse(args, DEFAULTS).secure_mode, true);
  }
  assert.strictEqual(flags.parse(['--secure_mode', 'false'], DEFAULTS).secure_mode, false);
});

test('unknown flags are warned about once and left out with their values', context => {
  const warning = context.mock.method(console, 'error', () => {});
  assert.strictEqual(flags.parse(['--nonsense', '7', '--other=8', '--qps=2'], DEFAULTS).qps, 2);
  const warnings = warning.mock.calls.map(call => call.arguments[0]);
  assert.deepStrictEqual(warnings, ['--nonsense: unknown flag, ignored', '--other: unknown flag, ignored']);
});

async function code(values, attempts) {
  const metadata = new grpc.Metadata();
  values.forEach(value => metadata.add('rpc-behavior', value));
  if (attempts !== undefined) {
    metadata.add('grpc-previous-rpc-attempts', attempts);
  }
  return (await behave(metadata, 'me'))?.code ?? 0;
}

test('behaviors are done one after the other', async () => {
  assert.strictEqual(await code([]), 0);
  assert.strictEqual(await code(['sleep-0']), 0);
  assert.strictEqual(await code(['sleep-0, error-code-14']), 14);
  assert.strictEqual(await code(['sleep-0', 'error-code-7']), 7);
  assert.strictEqual(await code(['error-code-0,keep-open']), 0);
});

test('a behavior may be for one host only', async () => {
  assert.strictEqual(await code(['hostname=me error-code-5']), 5);
  assert.strictEqual(await code(['hostname=you error-code-5']), 0);
});

test('a retry succeeds at its attempt', async () => {
  const asked = ['succeed-on-retry-attempt-2,error-code-14'];
  assert.strictEqual(await code(asked), 14);
  assert.strictEqual(await code(asked, '1'), 14);
  assert.strictEqual(await code(asked, '2'), 0);
});

test('what is not understood is refused', async () => {
  for (const value of ['dance', 'sleep-x', 'sleep-', 'error-code-99', 'error-code-', 'keep-open-5', 'hostname=me']) {
    assert.strictEqual(await code([value]), grpc.status.INVALID_ARGUMENT, value);
  }
});

const outcome = (code, peer) => ({ code, peer, headers: new grpc.Metadata(), trailers: new grpc.Metadata() });

test('a watch counts the next calls that start', () => {
  const stats = new Stats();
  let response;
  const earlier = stats.started('UnaryCall');
  stats.watch({ num_rpcs: 3, timeout_sec: 30, metadata_keys: [] }, told => (response = told));
  const calls = ['EmptyCall', 'UnaryCall', 'UnaryCall', 'UnaryCall'].map(kind => stats.started(kind));
  stats.ended('UnaryCall', earlier, outcome(0, 'too early'));
  stats.ended('UnaryCall', calls[3], outcome(0, 'too late'));
  stats.ended('UnaryCall', calls[2], outcome(0, 'a'));
  stats.ended('UnaryCall', calls[1], outcome(14, ''));
  assert.strictEqual(response, undefined);
  stats.ended('EmptyCall', calls[0], outcome(0, 'a'));
  assert.deepStrictEqual(response.rpcs_by_peer, { a: 2 });
  assert.deepStrictEqual(response.rpcs_by_method.EmptyCall, { rpcs_by_peer: { a: 1 } });
  assert.strictEqual(response.num_failures, 1);
  assert.strictEqual(stats.watches.size, 0);
});

test('calls that have not ended in time are failures', async () => {
  const request = { num_rpcs: 3, timeout_sec: 0, metadata_keys: [] };
  const response = await new Promise(told => new Stats().watch(request, told));
  assert.strictEqual(response.num_failures, 3);
});

test('metadata is told when it is asked for', async () => {
  const stats = new Stats();
  const watching = new Promise(told => stats.watch({ num_rpcs: 1, timeout_sec: 30, metadata_keys: ['X-One'] }, told));
  const call = outcome(0, 'a');
  call.headers.add('x-one', '1');
  call.headers.add('x-two', '2');
  call.trailers.add('x-one', '3');
  stats.ended('EmptyCall', stats.started('EmptyCall'), call);
  const { metadatas_by_peer } = await watching;
  assert.deepStrictEqual(metadatas_by_peer.a.rpc_metadata, [
    { metadata: [{ key: 'x-one', value: '1', type: 'INITIAL' }, { key: 'x-one', value: '3', type: 'TRAILING' }] },
  ]);
});

test('totals', () => {
  const stats = new Stats();
  [0, 14, 14].forEach(code => stats.ended('UnaryCall', stats.started('UnaryCall'), outcome(code, 'a')));
  stats.started('EmptyCall');
  assert.deepStrictEqual(stats.totals.num_rpcs_started_by_method, { UNARY_CALL: 3, EMPTY_CALL: 1 });
  assert.deepStrictEqual(stats.totals.num_rpcs_failed_by_method, { UNARY_CALL: 2 });
  assert.deepStrictEqual(stats.totals.stats_per_method.UNARY_CALL.result, { 0: 1, 14: 2 });
});

test('definitions are read once', () => {
  const loader = peer('node_modules/@grpc/proto-loader');
  const file = path.resolve(process.env.PEER, 'testing.proto');
  assert.ok(messages.TestService);
  assert.strictEqual(loader.loadSync(file, { keepCase: true }), loader.loadSync(file, { keepCase: true }));
  assert.notStrictEqual(loader.loadSync(file, { keepCase: true }), loader.loadSync(file, { keepCase: false }));
});

test('the policy is known and wants its setting', () => {
  policy.register();
  const config = { 'test.RpcBehaviorLoadBalancer': { rpcBehavior: 'error-code-15' } };
  assert.deepStrictEqual(grpc.experimental.parseLoadBalancingConfig(config).toJsonObject(), config);
  const broken = { 'test.RpcBehaviorLoadBalancer': {} };
  assert.throws(() => grpc.experimental.parseLoadBalancingConfig(broken), /rpcBehavior: expected a string, found undefined/);
});
