// gRPC's xDS interop server on @grpc/grpc-js: answers with its host's name, behaves as a call's `rpc-behavior` asks, and
// reports load: what a request asks to be reported, or with `--load_utilization` and `--load_qps` the same in every answer
// and out of band.
//
// With `--secure_mode` TestService is on `--port` with what the control plane says, and health and admin services are on
// `--maintenance_port`, in the clear; without it all are on `--port`. Streaming methods are UNIMPLEMENTED.
'use strict';

const net = require('net');
const os = require('os');
const grpc = require('@grpc/grpc-js');
const xds = require('@grpc/grpc-js-xds');
const { HealthImplementation } = require('grpc-health-check');
const { behave } = require('./behavior');
const flags = require('./flags');
const messages = require('./messages');

const FLAGS = {
  port: 8080,
  maintenance_port: 8081,
  server_id: 'node_server',
  host_name_override: '',
  secure_mode: false,
  load_utilization: 0,
  load_qps: 0,
};

const REPORTING = { 'grpc.server_call_metric_recording': 1 };

function addTestService(server, options) {
  const hostname = options.host_name_override || os.hostname();
  const answering = answer => (call, callback) => {
    behave(call.metadata, hostname).then(status => {
      reportLoad(call.getMetricsRecorder(), options, call.request.orca_per_query_report);
      if (status) {
        // Without headers, because a client that has seen headers does not retry.
        callback(status);
        return;
      }
      const headers = new grpc.Metadata();
      headers.set('hostname', hostname);
      call.sendMetadata(headers);
      callback(null, answer(call.request));
    });
  };
  server.addService(messages.TestService.service, {
    EmptyCall: answering(() => ({})),
    UnaryCall: answering(request => ({
      server_id: options.server_id,
      hostname,
      payload: request.response_size > 0 ? { body: Buffer.alloc(request.response_size) } : null,
    })),
  });
}

function reportLoad(recorder, options, asked) {
  if (options.load_utilization > 0) {
    recorder.recordApplicationUtilizationMetric(options.load_utilization);
  }
  if (options.load_qps > 0) {
    recorder.recordQpsMetric(options.load_qps);
  }
  if (asked) {
    recorder.recordCPUUtilizationMetric(asked.cpu_utilization);
    recorder.recordMemoryUtilizationMetric(asked.memory_utilization);
    Object.entries(asked.request_cost).forEach(([name, value]) => recorder.recordRequestCostMetric(name, value));
    Object.entries(asked.utilization).forEach(([name, value]) => recorder.recordUtilizationMetric(name, value));
  }
}

function addOutOfBandReports(server, options) {
  const recorder = new grpc.ServerMetricRecorder();
  recorder.setApplicationUtilizationMetric(options.load_utilization);
  recorder.setQpsMetric(options.load_qps);
  recorder.addToServer(server);
}

function addMaintenance(server) {
  const health = new HealthImplementation({ '': 'SERVING' });
  health.addToServer(server);
  const setting = status => (call, callback) => {
    health.setStatus('', status);
    callback(null, {});
  };
  server.addService(messages.XdsUpdateHealthService.service, {
    SetServing: setting('SERVING'),
    SetNotServing: setting('NOT_SERVING'),
  });
  grpc.addAdminServicesToServer(server);
}

function bind(server, port, credentials) {
  return new Promise((resolve, reject) => {
    server.bindAsync(`0.0.0.0:${port}`, credentials, (error, bound) => (error ? reject(error) : resolve(bound)));
  });
}

// A port that nobody uses. xDS servers of this library do not take port 0.
function freePort() {
  return new Promise((resolve, reject) => {
    const probe = net.createServer().on('error', reject);
    probe.listen(0, () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

async function main() {
  const options = flags.parse(process.argv.slice(2), FLAGS);
  const insecure = grpc.ServerCredentials.createInsecure();
  const maintenance = new grpc.Server(REPORTING);
  xds.register();
  addMaintenance(maintenance);
  let server = maintenance;
  if (options.secure_mode) {
    await bind(maintenance, options.maintenance_port, insecure);
    server = new xds.XdsServer(REPORTING);
  }
  addTestService(server, options);
  if (options.load_utilization > 0 || options.load_qps > 0) {
    addOutOfBandReports(server, options);
  }
  if (options.secure_mode) {
    const port = options.port || (await freePort());
    // Not awaited: it is bound when the control plane has said how to serve.
    bind(server, port, new xds.XdsServerCredentials(insecure)).catch(fail);
    console.log(`listening on ${port}`);
  } else {
    console.log(`listening on ${await bind(server, options.port, insecure)}`);
  }
}

function fail(error) {
  console.error(error.message);
  process.exit(1);
}

main().catch(fail);
