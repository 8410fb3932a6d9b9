// gRPC's xDS interop client on @grpc/grpc-js-xds: calls a target at a steady rate and tells a driver where the calls went.
//
// The stats port serves the totals, the configuration of calls, and the library's admin services (CSDS and channelz).
'use strict';

// Off unless asked for in this version of the library. It looks at them when it is loaded.
process.env.GRPC_EXPERIMENTAL_XDS_WRR_LB ??= 'true';
process.env.GRPC_EXPERIMENTAL_PICKFIRST_LB_CONFIG ??= 'true';

const grpc = require('@grpc/grpc-js');
const xds = require('@grpc/grpc-js-xds');
const flags = require('./flags');
const policy = require('./policy');
const messages = require('./messages');
const { Stats, TOTALS } = require('./stats');

const FLAGS = {
  server: 'localhost:8080',
  qps: 1,
  num_channels: 1,
  rpc: 'UnaryCall',
  metadata: '',
  stats_port: 8081,
  rpc_timeout_sec: 20,
  fail_on_failed_rpc: false,
  fail_on_failed_rpcs: false,
  print_response: false,
  expect_status: 'OK',
  secure_mode: false,
};

// A client that is this far behind its rate does not catch up: a burst would say nothing about balancing.
const LATE_MS = 1000;

class Client {
  // `plan` is what every tick calls: metadata by kind of call, and the deadline in seconds (null: the command line's).
  constructor(options, plan) {
    this.options = options;
    this.plan = plan;
    this.stats = new Stats();
    this.expected = statusCode(options.expect_status);
    this.hasSucceeded = false;
  }

  run() {
    const stubs = Array.from({ length: this.options.num_channels }, () => this.stub());
    const interval = 1000 / (this.options.qps * stubs.length);
    let due = performance.now();
    let turn = 0;
    const tick = () => {
      const stub = stubs[turn++ % stubs.length];
      Object.entries(this.plan.metadata).forEach(([kind, metadata]) => this.call(stub, kind, metadata));
      due = Math.max(due + interval, performance.now() - LATE_MS);
      const wait = due - performance.now();
      // One tick per turn of the loop: the library's circuit breaker counts a call only in the turn after its pick.
      wait > 0 ? setTimeout(tick, wait) : setImmediate(tick);
    };
    tick();
  }

  stub() {
    const insecure = grpc.credentials.createInsecure();
    const credentials = this.options.secure_mode ? new xds.XdsChannelCredentials(insecure) : insecure;
    return new messages.TestService(this.options.server, credentials);
  }

  call(stub, kind, metadata) {
    const interested = this.stats.started(kind);
    const request = kind === 'UnaryCall' ? { fill_server_id: true } : {};
    let headers = new grpc.Metadata();
    let response = {};
    const call = stub[kind](request, metadata, this.callOptions(metadata), (error, received) => (response = received));
    call.on('metadata', received => (headers = received));
    // Comes last, in all cases.
    call.on('status', ({ code, details, metadata: trailers }) => {
      const peer = code === 0 ? headers.get('hostname')[0] || response.hostname : '';
      this.finish(kind, interested, { code, details, peer, headers, trailers });
    });
  }

  callOptions(metadata) {
    const isKeptOpen = metadata.get('rpc-behavior').includes('keep-open');
    const seconds = this.plan.timeout ?? (isKeptOpen ? null : this.options.rpc_timeout_sec);
    return seconds === null ? {} : { deadline: Date.now() + seconds * 1000 };
  }

  finish(kind, interested, outcome) {
    this.stats.ended(kind, interested, outcome);
    if (this.options.print_response) {
      console.log(describe(kind, outcome));
    }
    if (outcome.code === this.expected) {
      this.hasSucceeded = true;
    } else if (this.hasSucceeded && (this.options.fail_on_failed_rpc || this.options.fail_on_failed_rpcs)) {
      console.error(`${describe(kind, outcome)}, after others had succeeded`);
      process.exit(1);
    }
  }

  configure(request) {
    const metadata = {};
    for (const number of request.types) {
      const kind = KINDS[number];
      if (kind === undefined) {
        throw new Error(`types: expected EMPTY_CALL or UNARY_CALL, found ${number}`);
      }
      metadata[kind] = new grpc.Metadata();
      request.metadata.filter(entry => entry.type === number).forEach(entry => metadata[kind].add(entry.key, entry.value));
    }
    this.plan = { metadata, timeout: request.timeout_sec || null };
  }
}

// By their numbers in ClientConfigureRequest.
const KINDS = ['EmptyCall', 'UnaryCall'];

function describe(kind, outcome) {
  if (outcome.code !== 0) {
    return `${kind} failed with status ${outcome.code}: ${outcome.details}`;
  }
  // Drivers look for these words.
  return `Greeting: Hello world, this is ${outcome.peer}, from ${kind}`;
}

// The number of a status that is given by number or name.
function statusCode(text) {
  const code = /^\d+$/.test(text) ? Number(text) : grpc.status[text.toUpperCase()];
  if (grpc.status[code] === undefined) {
    flags.fail(`--expect_status: expected the name or number of a status, found "${text}"`);
  }
  return code;
}

function commandLinePlan(options) {
  const metadata = {};
  for (const kind of (options.rpc || 'UnaryCall').split(',')) {
    if (!Object.hasOwn(TOTALS, kind)) {
      flags.fail(`--rpc: expected EmptyCall or UnaryCall, found "${kind}"`);
    }
    metadata[kind] = new grpc.Metadata();
  }
  for (const entry of options.metadata.split(',').filter(Boolean)) {
    const [, kind, key, value] = /^(EmptyCall|UnaryCall):([^:]+):(.*)$/.exec(entry) ?? [];
    if (kind === undefined) {
      flags.fail(`--metadata: expected EmptyCall:key:value or UnaryCall:key:value, found "${entry}"`);
    }
    metadata[kind]?.add(key, value);
  }
  return { metadata, timeout: null };
}

function serve(client, port) {
  const server = new grpc.Server();
  server.addService(messages.LoadBalancerStatsService.service, {
    GetClientStats: (call, callback) => client.stats.watch(call.request, response => callback(null, response)),
    GetClientAccumulatedStats: (call, callback) => callback(null, client.stats.totals),
  });
  server.addService(messages.XdsUpdateClientConfigureService.service, {
    Configure: (call, callback) => {
      try {
        client.configure(call.request);
        callback(null, {});
      } catch (error) {
        callback({ code: grpc.status.INVALID_ARGUMENT, details: error.message });
      }
    },
  });
  grpc.addAdminServicesToServer(server);
  server.bindAsync(`0.0.0.0:${port}`, grpc.ServerCredentials.createInsecure(), (error, bound) => {
    if (error) {
      console.error(`stats port ${port}: ${error.message}`);
      process.exit(1);
    }
    console.log(`listening on ${bound}`);
    client.run();
  });
}

function main() {
  const options = flags.parse(process.argv.slice(2), FLAGS);
  if (options.qps < 1 || options.num_channels < 1) {
    flags.fail(`expected --qps and --num_channels of at least 1, found ${options.qps} and ${options.num_channels}`);
  }
  xds.register();
  policy.register();
  serve(new Client(options, commandLinePlan(options)), options.stats_port);
}

main();
