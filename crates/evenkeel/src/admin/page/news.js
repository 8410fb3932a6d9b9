// What came from outside: the resources of the control plane, the events of the process, the hints.

import { rawOf } from './resources.js';
import { $, age, ago, arrange, clock, copy, hide, locality, mark, put, shape } from './format.js';

const KINDS = { Listener: 'LDS', RouteConfiguration: 'RDS', Cluster: 'CDS', ClusterLoadAssignment: 'EDS' };
const STATUSES = {
  ACKED: 'good', NACKED: 'bad', REQUESTED: 'busy', DOES_NOT_EXIST: 'none', TIMEOUT: 'warn', RECEIVED_ERROR: 'warn',
};
/** An absent resource is not a rejected one. */
const ABSENT = { DOES_NOT_EXIST: 'Does not exist', TIMEOUT: 'Not received', RECEIVED_ERROR: 'Error of the control plane' };
const LEVELS = { mark: 'mark', info: 'info', warning: 'warn', error: 'bad' };
/** So many events stand in the list; the server keeps more. */
const EVENTS = 200;

const clients = new Map();
const resources = new Map();

export function showClients(all, now) {
  hide($('static'), all.length > 0);
  const seen = new Set();
  arrange($('clients'), all.map((client) => {
    const box = clients.get(client.scope) ?? copy('client');
    clients.set(client.scope, box);
    const [node, servers, table] = box.children;
    put(node, [client.scope && `scope ${client.scope}`, client.node && `node ${client.node}`].filter(Boolean).join(' · '));
    showServers(servers, client.servers);
    arrange(table.tBodies[0], client.resources.map((resource) => {
      const key = `${client.scope}\n${resource.kind}\n${resource.name}`;
      seen.add(key);
      return showResource(key, resource, now);
    }));
    return box;
  }));
  for (const key of resources.keys()) if (!seen.has(key)) resources.delete(key);
}

function showServers(list, servers) {
  arrange(list, servers.map((server, at) => {
    let line = list.children[at];
    if (!line) {
      line = document.createElement('li');
      line.append($('live').firstElementChild.cloneNode(true), document.createElement('span'));
    }
    mark(line, 'data-server', server.uri);
    mark(line, 'data-connected', String(server.connected));
    shape(line.firstElementChild, server.connected ? 'good' : 'bad');
    put(line.lastElementChild, `${server.uri} ${server.connected ? 'connected' : 'not connected'}`);
    return line;
  }));
}

function showResource(key, resource, now) {
  let row = resources.get(key);
  if (!row) {
    row = copy('resource');
    row.dataset.resource = resource.name;
    row.dataset.kind = resource.kind;
    put(row.querySelector('.kind'), KINDS[resource.kind] ?? resource.kind);
    row.querySelector('.kind').title = resource.kind;
    const open = row.querySelector('.name button');
    put(open, resource.name);
    open.addEventListener('click', () => {
      open.setAttribute('aria-expanded', String(open.getAttribute('aria-expanded') !== 'true'));
      showRaw(row, key);
    });
    row.fields = Object.fromEntries([...row.querySelectorAll('[data-field]')].map((cell) => [cell.dataset.field, cell]));
    resources.set(key, row);
  }
  showRaw(row, key);
  const { status, version, age: old, error } = row.fields;
  mark(row, 'data-status', resource.status);
  shape(row.querySelector('svg'), STATUSES[resource.status] ?? 'none');
  put(status, resource.status.replaceAll('_', ' ').toLowerCase());
  put(version, resource.version || '–');
  put(old, resource.updated == null ? '–' : age(now - resource.updated));
  hide(error, !resource.error);
  if (resource.error) {
    const { version: refused, details, at } = resource.error;
    const when = at == null ? '' : ` ${ago(now - at)}`;
    const isRejected = resource.status === 'NACKED';
    put(error, isRejected ? `${refused ? `Version ${refused}` : 'An update'} was rejected${when}: ${details}` : `${ABSENT[resource.status] ?? 'Error'}${when}: ${details}`);
    mark(error, 'data-level', isRejected ? 'bad' : 'warn');
  }
  return row;
}

/** The resource as JSON, while its name is expanded. */
function showRaw(row, key) {
  const isOpen = row.querySelector('.name button').getAttribute('aria-expanded') === 'true';
  hide(row.fields.raw, !isOpen);
  if (isOpen) put(row.fields.raw, rawOf(key) || 'The client has no version of this resource.');
}

const events = new Map();

/** The newest first. Marks are numbered; the charts show the same numbers. */
export function showEvents(all, marks) {
  const numbers = new Map(marks.map(({ event, number }) => [event, number]));
  const newest = all.slice(-EVENTS).reverse();
  hide($('quiet'), newest.length > 0);
  hide($('events'), newest.length === 0);
  const kept = new Set(newest.map((event) => event.number));
  for (const number of events.keys()) if (!kept.has(number)) events.delete(number);
  arrange($('events'), newest.map((event) => {
    let line = events.get(event.number);
    if (!line) {
      line = eventLine(event);
      events.set(event.number, line);
    }
    if (event.level === 'mark') put(line.querySelector('.number'), String(numbers.get(event.number)));
    return line;
  }));
}

function eventLine(event) {
  const line = document.createElement('li');
  line.dataset.event = String(event.number);
  line.dataset.level = event.level;
  const time = document.createElement('time');
  time.dateTime = new Date(event.at).toISOString();
  time.textContent = clock(event.at);
  const icon = $('live').firstElementChild.cloneNode(true);
  shape(icon, LEVELS[event.level] ?? 'info');
  const words = document.createElement('span');
  words.className = 'words';
  if (event.level === 'mark') {
    const number = document.createElement('b');
    number.className = 'number';
    words.append(number, ' ');
  } else {
    const level = document.createElement('span');
    level.className = 'unseen';
    level.textContent = `${event.level}: `;
    words.append(level);
  }
  if (event.subject) {
    const subject = document.createElement('b');
    subject.textContent = locality(event.subject);
    words.append(subject, ' ');
  }
  words.append(event.text);
  line.append(time, icon, words);
  return line;
}

export function showHints(hints) {
  hide($('hints'), hints.length === 0);
  arrange($('hint-list'), hints.map((hint, at) => {
    const line = $('hint-list').children[at] ?? document.createElement('li');
    put(line, hint);
    return line;
  }));
}
