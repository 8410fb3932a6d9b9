// Whether the balance is even, and whom it hurts: one headline and one sentence out of a channel's state.
//
// It is calm: what endpoints get is smoothed over some looks before anyone is called out, because the calls of one
// second spread by chance even when all is well.

import { busy, nameOf, percent, whyOf } from './format.js';

/** From here on an endpoint is close to what it can do. */
const BUSY = 0.85;
/** At most this part of the calls may fail before that is the headline. */
const FAILING = 0.005;
/** How much the newest look counts. */
const NEWEST = 0.3;
/** So many looks at a share say nothing yet. */
const SETTLING = 3;

/** By how much each endpoint misses its share, smoothed: by key. */
export class Misses {
  constructor() {
    this.byKey = new Map();
  }

  look(endpoints) {
    const next = new Map();
    for (const endpoint of endpoints) {
      const { got, want } = endpoint;
      if (got == null || want == null) continue;
      const old = this.byKey.get(endpoint.key);
      // Under another share it starts anew: what it got is still that of the share before.
      const isSame = old && Math.abs(want - old.want) <= 0.1 * Math.max(want, old.want);
      const looks = isSame ? old.looks + 1 : 1;
      const now = got - want;
      next.set(endpoint.key, { want, looks, miss: looks > SETTLING ? old.miss + NEWEST * (now - old.miss) : now });
    }
    this.byKey = next;
  }

  /** The miss, if it is more than chance and rounding explain. */
  beyondChance(endpoint, calls) {
    const known = this.byKey.get(endpoint.key);
    if (!known || known.looks <= SETTLING || calls <= 0) return null;
    // The smoothing counts as if calls of 2/NEWEST - 1 looks were taken together.
    const looks = Math.min(known.looks - SETTLING, 2 / NEWEST - 1);
    const spread = Math.sqrt((endpoint.want * (1 - endpoint.want)) / (calls * looks));
    return Math.abs(known.miss) > Math.max(0.1 * endpoint.want, 4 * spread) ? known.miss : null;
  }
}

/** Not connected though it should be. One that waits its turn (another priority is in use) is no trouble. */
export const isDown = (endpoint) => endpoint.state === 'TRANSIENT_FAILURE';

/** `{ level, headline, because }`; level is good, warn, bad or idle. */
export function judge(channel, missOf, clients) {
  const verdict = balance(channel, missOf);
  return { ...verdict, because: [verdict.because, ...configuration(clients)].join(' ') };
}

/** What the configuration suffers from. It hurts nobody yet, so it is never the headline. */
function* configuration(clients) {
  const servers = clients.flatMap((client) => client.servers);
  if (servers.length && servers.every((server) => !server.connected)) yield 'The control plane is not connected; its last resources stay in use.';
  const refused = clients.flatMap((client) => client.resources).filter((resource) => resource.status === 'NACKED').length;
  if (refused) yield `${refused} ${refused > 1 ? 'resources were' : 'resource was'} rejected; the previous ${refused > 1 ? 'versions stay' : 'version stays'} in use.`;
}

function balance(channel, missOf) {
  const { endpoints, traffic } = channel;
  if (!channel.tree) return idle('Idle', 'The channel is IDLE: it has no calls and no connections.');
  if (endpoints.length === 0) return idle('No endpoints', 'The channel has received no endpoints.');
  const findings = [...failing(channel), ...overloaded(endpoints), ...down(endpoints), ...uneven(endpoints, missOf)];
  if (findings.length === 0) {
    return traffic.rate > 0 ? good(endpoints) : idle('No calls', `${ready(endpoints)} of ${endpoints.length} endpoints are ready.`);
  }
  const [first, ...others] = findings;
  return { ...first, because: [first, ...others].map((finding) => finding.because).join(' ') };
}

const idle = (headline, because) => ({ level: 'idle', headline, because });
const ready = (endpoints) => endpoints.filter((endpoint) => endpoint.state === 'READY').length;

function good(endpoints) {
  const misses = endpoints.filter((e) => e.got != null && e.want != null).map((e) => Math.abs(e.got - e.want));
  const busiest = highest(endpoints, 'utilization');
  const share = misses.length ? `Every endpoint gets the share it should, within ${points(Math.max(...misses))}.` : 'Calls succeed.';
  const load = busiest ? ` The busiest, ${nameOf(busiest)}, is at ${busy(busiest.utilization)}.` : '';
  return { level: 'good', headline: 'On an even keel', because: share + load };
}

function* failing({ endpoints, traffic }) {
  const share = traffic.rate > 0 ? traffic.failures / traffic.rate : 0;
  if (share <= FAILING) return;
  const worst = [...endpoints].sort((a, b) => b.traffic.failures - a.traffic.failures)[0];
  const where = worst.traffic.failures > 0 ? ` Most of them on ${nameOf(worst)}.` : '';
  yield { level: 'bad', headline: 'Calls fail', because: `${percent(share)} of calls fail.${where}` };
}

function* overloaded(endpoints) {
  const over = endpoints.filter((endpoint) => endpoint.utilization >= BUSY);
  if (over.length === 0) return;
  const busiest = highest(over, 'utilization');
  const idlest = lowest(endpoints.filter((endpoint) => endpoint.state === 'READY' && !endpoint.unused), 'utilization');
  const past = busiest.utilization >= 1;
  const room = idlest && idlest.utilization < busiest.utilization / 2
    ? ` while ${nameOf(idlest)} has spare capacity (${busy(idlest.utilization)})` : '';
  const who = `${names(over)} ${over.length > 1 ? 'are' : 'is'}`;
  yield {
    level: past ? 'bad' : 'warn',
    headline: past ? 'Overloaded' : room ? 'Imbalanced' : 'Busy',
    because: `${who} ${busiest.utilization > 1.005 ? 'above' : past ? 'at' : 'close to'} ${over.length > 1 ? 'their' : 'its'} capacity (up to ${busy(busiest.utilization)})${room}.`,
  };
}

function* down(endpoints) {
  const gone = endpoints.filter(isDown);
  if (gone.length === 0) return;
  const all = gone.length === endpoints.length;
  const why = gone.length === 1 && gone[0].unused ? `: ${whyOf(gone[0]).split(';')[0]}` : '';
  const rest = all ? '' : ' The others get the calls.';
  yield {
    level: all ? 'bad' : 'warn',
    headline: all ? 'No endpoint is reachable' : `${gone.length} of ${endpoints.length} endpoints down`,
    because: `${names(gone)} ${gone.length > 1 ? 'get' : 'gets'} no calls${why}.${rest}`,
  };
}

function* uneven(endpoints, missOf) {
  const off = endpoints.map((endpoint) => [endpoint, missOf(endpoint)]).filter(([, miss]) => miss != null);
  if (off.length === 0) return;
  off.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const [endpoint, miss] = off[0];
  const others = off.length > 1 ? `, and ${off.length - 1} more ${off.length > 2 ? 'are' : 'is'} off` : '';
  yield {
    level: 'warn',
    headline: 'Uneven',
    because: `${nameOf(endpoint)} gets ${amount(Math.abs(miss), endpoint.want)} ${miss > 0 ? 'more' : 'less'} than it should${others}.`,
  };
}

function highest(endpoints, field) {
  return endpoints.reduce((best, e) => (e[field] != null && (!best || e[field] > best[field]) ? e : best), null);
}

function lowest(endpoints, field) {
  return endpoints.reduce((best, e) => (e[field] != null && (!best || e[field] < best[field]) ? e : best), null);
}

function names(endpoints) {
  const few = endpoints.slice(0, 2).map(nameOf);
  const rest = endpoints.length - few.length;
  return rest > 0 ? `${few.join(', ')} and ${rest} more` : few.join(' and ');
}

/** A miss in points, or as part of the share where that is tiny. */
const amount = (miss, want) => (miss >= 0.002 || !want ? points(miss) : `${busy(miss / want)}`);

const points = (share) => (share < 0.0005 ? 'rounding' : `${percent(share).slice(0, -1)} points`);
