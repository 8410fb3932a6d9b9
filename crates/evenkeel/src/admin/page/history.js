// The last two minutes of a channel, by address: begun from /api/history, carried on from every look.

/** So many looks are kept; they are a second apart. */
export const LOOKS = 120;

const FIELDS = ['rate', 'busy', 'latency'];

export class History {
  constructor() {
    this.at = [];
    this.byAddress = new Map();
  }

  /** What the server remembers. */
  static from(kept) {
    const history = new History();
    history.at = kept.at.slice(-LOOKS);
    for (const [address, series] of kept.endpoints) {
      history.byAddress.set(address, {
        rate: series.rate.slice(-LOOKS),
        busy: series.utilization.slice(-LOOKS),
        latency: series.p99_ms.slice(-LOOKS),
      });
    }
    return history;
  }

  look(at, endpoints) {
    if (at <= (this.at.at(-1) ?? 0)) return;
    this.at.push(at);
    const length = this.at.length;
    for (const { address, traffic, utilization } of endpoints) {
      const series = this.byAddress.get(address) ?? this.begin(address, length - 1);
      const isSecond = series.rate.length === length;
      if (!isSecond) for (const field of FIELDS) series[field].push(null);
      // An address that serves two clusters is one server: its calls add up.
      add(series.rate, traffic.rate, (a, b) => a + b);
      add(series.busy, utilization, Math.max);
      add(series.latency, traffic.p99_ms, Math.max);
    }
    const isFull = length > LOOKS;
    if (isFull) this.at.shift();
    for (const [address, series] of this.byAddress) {
      for (const field of FIELDS) {
        if (series[field].length < length) series[field].push(null);
        if (isFull) series[field].shift();
      }
      if (series.rate.at(-1) == null && series.rate.every((value) => value == null)) this.byAddress.delete(address);
    }
  }

  begin(address, length) {
    const series = Object.fromEntries(FIELDS.map((field) => [field, Array(length).fill(null)]));
    this.byAddress.set(address, series);
    return series;
  }
}

function add(values, value, join) {
  const last = values.length - 1;
  if (value != null) values[last] = values[last] == null ? value : join(values[last], value);
}
