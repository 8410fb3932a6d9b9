// Raw resources and route tables, from /api/resources. They are fetched when a resource has changed, not every second.

import { $, arrange, hide, percent, put } from './format.js';

let known = '';
let contents = new Map();

const kindOf = (url = '') => url.split(/[./]/).at(-1);

/** Fetches the resources if their versions have changed, then calls `done`. */
export async function fetchResources(clients, done) {
  const versions = clients.flatMap((client) => client.resources.map(({ kind, name, version, status }) => `${client.scope} ${kind} ${name} ${version} ${status}`)).join('\n');
  if (versions === known) return;
  known = versions;
  try {
    const answer = clients.length ? await (await fetch('/api/resources')).json() : {};
    const found = new Map();
    for (const { clientScope = '', genericXdsConfigs: configs = [] } of answer.config ?? []) {
      for (const { typeUrl, name, xdsConfig } of configs) if (xdsConfig) found.set(`${clientScope}\n${kindOf(typeUrl)}\n${name}`, xdsConfig);
    }
    contents = found;
    done();
  } catch {
    // The next sample tries again.
    known = '';
  }
}

/** The text of a resource; empty if the client has none. */
export function rawOf(key) {
  const raw = contents.get(key);
  return raw ? JSON.stringify(raw, null, 2) : '';
}

/** Route configurations of a listener or of RDS, each with its name. */
function* configurations() {
  for (const [key, raw] of contents) {
    const [, kind, name] = key.split('\n');
    if (kind === 'RouteConfiguration') yield [name, raw];
    const inline = raw.apiListener?.apiListener?.routeConfig;
    if (kind === 'Listener' && inline) yield [`${name} (inline)`, inline];
  }
}

export function showRoutes() {
  const lines = [];
  for (const [name, { virtualHosts = [] }] of configurations()) {
    for (const { domains = [], routes = [] } of virtualHosts) {
      routes.forEach((route, at) => lines.push([at ? '' : `${name}: ${domains.join(', ')}`, matchOf(route.match), actionOf(route)]));
      if (routes.length === 0) lines.push([`${name}: ${domains.join(', ')}`, 'no routes', '–']);
    }
  }
  hide($('routes'), lines.length === 0);
  arrange($('route-list'), lines.map((texts, at) => {
    const row = $('route-list').children[at] ?? made();
    texts.forEach((text, column) => put(row.children[column], text));
    return row;
  }));
}

function made() {
  const row = document.createElement('tr');
  row.setAttribute('role', 'row');
  for (const kind of ['th', 'td', 'td']) {
    const cell = document.createElement(kind);
    cell.setAttribute('role', kind === 'th' ? 'rowheader' : 'cell');
    row.append(cell);
  }
  return row;
}

function matchOf(match = {}) {
  const { prefix, path, safeRegex, headers = [], queryParameters = [], runtimeFraction, caseSensitive } = match;
  const parts = [path ?? (safeRegex ? `paths like ${safeRegex.regex}` : prefix && prefix !== '/' ? `${prefix}*` : 'all calls')];
  if (caseSensitive === false) parts.push('in any case');
  for (const header of headers) parts.push(headerOf(header));
  for (const { name } of queryParameters) parts.push(`query parameter ${name}`);
  const { numerator = 0, denominator = 'HUNDRED' } = runtimeFraction?.defaultValue ?? {};
  if (runtimeFraction) parts.push(`${percent(numerator / ({ HUNDRED: 100, TEN_THOUSAND: 1e4, MILLION: 1e6 }[denominator] ?? 100))} of them`);
  return parts.join(', ');
}

function headerOf({ name, invertMatch, ...rest }) {
  const [kind, value] = Object.entries(rest)[0] ?? ['', ''];
  return `${invertMatch ? 'not ' : ''}header ${name}${kind ? ` ${kind.replace(/Match$/, '')} ${typeof value === 'object' ? JSON.stringify(value) : value}` : ''}`;
}

function actionOf({ route, nonForwardingAction, redirect, directResponse }) {
  if (redirect) return 'redirect, which gRPC clients do not follow';
  if (directResponse) return `direct response with status ${directResponse.status}`;
  if (nonForwardingAction || !route) return 'no cluster';
  const { cluster, clusterHeader, clusterSpecifierPlugin, weightedClusters } = route;
  if (weightedClusters) {
    const { clusters = [] } = weightedClusters;
    const sum = clusters.reduce((all, { weight = 0 }) => all + weight, 0);
    return clusters.map(({ name, weight = 0 }) => `${name} ${sum ? percent(weight / sum) : ''}`.trim()).join(', ');
  }
  return cluster ?? (clusterHeader ? `cluster of header ${clusterHeader}` : clusterSpecifierPlugin ? `plugin ${clusterSpecifierPlugin}` : 'no cluster');
}
