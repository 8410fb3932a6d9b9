// Failed calls of the last minute: counts by status code and cause, drops by category, and the last error text.

import { $, ago, arrange, count, hide, mark, percent, put } from './format.js';

const CAUSES = {
  server: 'returned by the server', connection: 'connection failed', deadline: 'no response before the deadline', no_config: 'no config',
  no_route: 'no route', no_endpoint: 'no endpoint connected', dropped: 'dropped', fault_injection: 'fault injection', local: 'in this process',
};
const causeOf = (name) => CAUSES[name] ?? name;

const rows = [];

export function showFailures({ traffic, drops = [] }, now) {
  const { recent_failures: failures = [], recent_calls: calls = 0, last_error: error } = traffic;
  hide($('failures'), failures.length === 0 && !error);
  // Drops of the cluster replace the line of dropped calls.
  const isNamed = (one) => one.cause === 'dropped' && drops.length > 0;
  const lines = failures.filter((one) => !isNamed(one)).map((one) => [one.code, causeOf(one.cause), one.count]);
  const code = failures.find(isNamed)?.code;
  for (const { cluster, category, limit, count: dropped } of drops) {
    const why = category == null ? `circuit breaker of ${cluster}${limit == null ? '' : `, maximum ${count(limit)} in flight`}` : `drop category ${category} of ${cluster}`;
    lines.push([code, why, dropped]);
  }
  lines.sort((a, b) => b[2] - a[2]);
  arrange($('codes'), lines.map(([status, cause, number], at) => {
    const row = (rows[at] ??= made());
    const [name, why, amount, share] = row.children;
    put(name, status ?? '–');
    put(why, cause);
    put(amount, count(number));
    put(share, calls ? percent(Math.min(1, number / calls)) : '–');
    return row;
  }));
  hide($('codes').parentElement, lines.length === 0);
  hide($('last-error'), !error);
  if (error) {
    put($('last-error-head'), `${error.code}, ${causeOf(error.cause)}, ${ago(now - error.at)}`);
    put($('last-error-text'), error.text || 'no message');
  }
}

function made() {
  const row = document.createElement('tr');
  row.setAttribute('role', 'row');
  for (const kind of ['th', 'td', 'td', 'td']) {
    const cell = document.createElement(kind);
    cell.setAttribute('role', kind === 'th' ? 'rowheader' : 'cell');
    row.append(cell);
  }
  return row;
}

/** Failures of an endpoint in one line; empty without any. */
export function failuresOf({ traffic }, now) {
  const { recent_failures: failures = [], last_error: error } = traffic;
  if (failures.length === 0) return '';
  const codes = new Map();
  for (const { code, count: more } of failures) codes.set(code, (codes.get(code) ?? 0) + more);
  const counts = [...codes].map(([code, number]) => `${count(number)} × ${code}`).join(', ');
  const last = error ? ` · last ${ago(now - error.at)}: ${error.text || error.code}` : '';
  return `${counts} in the last minute${last}`;
}
