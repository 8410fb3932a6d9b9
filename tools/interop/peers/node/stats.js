// What became of a client's calls: the totals since its start, and blocks of calls that somebody watches.
//
// A watch counts the next N calls that start after it began, whenever they end.
'use strict';

// The names of the kinds of calls in the totals.
const TOTALS = { EmptyCall: 'EMPTY_CALL', UnaryCall: 'UNARY_CALL' };

class Stats {
  constructor() {
    this.totals = {
      num_rpcs_started_by_method: {},
      num_rpcs_succeeded_by_method: {},
      num_rpcs_failed_by_method: {},
      stats_per_method: {},
    };
    this.watches = new Set();
  }

  // Counts a call of `kind`; the answer is those that want to know how it ends.
  started(kind) {
    const name = TOTALS[kind];
    increment(this.totals.num_rpcs_started_by_method, name);
    this.totals.stats_per_method[name] ??= { rpcs_started: 0, result: {} };
    this.totals.stats_per_method[name].rpcs_started += 1;
    const interested = [...this.watches].filter(watch => watch.toStart > 0);
    interested.forEach(watch => (watch.toStart -= 1));
    return interested;
  }

  ended(kind, interested, outcome) {
    const name = TOTALS[kind];
    increment(this.totals.stats_per_method[name].result, outcome.code);
    increment(outcome.code === 0 ? this.totals.num_rpcs_succeeded_by_method : this.totals.num_rpcs_failed_by_method, name);
    interested.forEach(watch => watch.ended(kind, outcome));
  }

  // Calls `done` with the next `request.num_rpcs` calls, or with what has ended of them after `request.timeout_sec`.
  watch(request, done) {
    const watch = new Watch(request, () => {
      clearTimeout(timer);
      this.watches.delete(watch);
      done(watch.response());
    });
    const timer = setTimeout(watch.finish, request.timeout_sec * 1000);
    this.watches.add(watch);
    if (watch.toEnd <= 0) {
      watch.finish();
    }
  }
}

class Watch {
  constructor(request, finish) {
    this.toStart = request.num_rpcs;
    this.toEnd = request.num_rpcs;
    this.keys = request.metadata_keys.map(key => key.trim().toLowerCase());
    this.finish = finish;
    this.failures = 0;
    this.byPeer = {};
    this.byMethod = {};
    this.metadata = {};
  }

  ended(kind, outcome) {
    if (outcome.peer) {
      increment(this.byPeer, outcome.peer);
      this.byMethod[kind] ??= { rpcs_by_peer: {} };
      increment(this.byMethod[kind].rpcs_by_peer, outcome.peer);
      this.keepMetadata(outcome);
    } else {
      this.failures += 1;
    }
    this.toEnd -= 1;
    if (this.toEnd === 0) {
      this.finish();
    }
  }

  keepMetadata(outcome) {
    if (this.keys.length === 0) {
      return;
    }
    const entries = [...this.entries(outcome.headers, 'INITIAL'), ...this.entries(outcome.trailers, 'TRAILING')];
    this.metadata[outcome.peer] ??= { rpc_metadata: [] };
    this.metadata[outcome.peer].rpc_metadata.push({ metadata: entries });
  }

  entries(metadata, type) {
    const keys = Object.keys(metadata.getMap()).filter(key => this.keys.includes('*') || this.keys.includes(key));
    return keys.flatMap(key => metadata.get(key).map(value => ({ key, value: asText(value), type })));
  }

  response() {
    return {
      rpcs_by_peer: this.byPeer,
      rpcs_by_method: this.byMethod,
      num_failures: this.failures + Math.max(this.toEnd, 0),
      metadatas_by_peer: this.metadata,
    };
  }
}

function asText(value) {
  return Buffer.isBuffer(value) ? value.toString('base64') : value;
}

function increment(counts, key) {
  counts[key] = (counts[key] ?? 0) + 1;
}

module.exports = { Stats, TOTALS };
