// The page: takes in one state of the process per second and hands it to the parts that show it.
//
// When the stream ends or falls silent, what is shown stays, is greyed and says how old it is; the page asks again
// until there is an answer, and then for the history that it missed.

import { $, age, ago, count, hide, mark, millis, put, rate, shape, success } from './format.js';
import { ChannelStrip, worstFirst } from './channels.js';
import { Charts } from './charts.js';
import { EndpointTable, giveKeys } from './endpoints.js';
import { History } from './history.js';
import { PolicyTree } from './tree.js';
import { showVerdict } from './verdict.js';
import { showFailures } from './failures.js';
import { showClients, showEvents, showHints } from './news.js';
import { fetchResources, showRoutes } from './resources.js';

/** Without a word for so long, the server counts as gone. */
const SILENCE = 5000;
/** Waits between attempts, in milliseconds; the last one repeats. */
const WAITS = [500, 1000, 2000, 4000];
const THEMES = ['auto', 'light', 'dark'];

const charts = new Charts();
const table = new EndpointTable((address) => charts.highlight(address), keepView);
const tree = new PolicyTree();
const strip = new ChannelStrip((id) => {
  choose(id);
  show();
  keepView();
});
/** Channel, filter and order of the link that opened the page. */
let linked = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const histories = new Map();

let chosen = null;
let state = null;
let heardAt = 0;
let attempts = 0;
let source = null;
let timer = null;
let frame = null;

function listen() {
  clearTimeout(timer);
  source?.close();
  source = new EventSource('/api/events');
  source.onmessage = (event) => hear(JSON.parse(event.data));
  source.onerror = lose;
  timer = setTimeout(lose, SILENCE);
}

function lose() {
  source?.close();
  source = null;
  mark(document.body, 'data-connected', 'false');
  clearTimeout(timer);
  timer = setTimeout(listen, WAITS[Math.min(attempts, WAITS.length - 1)]);
  attempts += 1;
  showConnection();
}

async function hear(next) {
  clearTimeout(timer);
  timer = setTimeout(lose, SILENCE);
  heardAt = Date.now();
  const isBack = document.body.dataset.connected !== 'true';
  attempts = 0;
  mark(document.body, 'data-connected', 'true');
  state = next;
  if (isBack) await remember();
  // Others may have come meanwhile: what is shown is what must be remembered.
  takeIn(state);
  // With the next frame: a tab that nobody looks at draws nothing.
  frame ??= requestAnimationFrame(show);
}

/** What the server remembers, at first and after every gap. Without it charts begin empty. */
async function remember() {
  try {
    const answer = await fetch('/api/history');
    if (!answer.ok) return;
    const all = await answer.json();
    // At one go: a frame may be drawn before anything that is waited for.
    histories.clear();
    for (const kept of all) histories.set(kept.id, History.from(kept));
  } catch {
    // The stream says so too, and is what is watched.
  }
}

function takeIn({ at, channels }) {
  for (const channel of channels) {
    if (!histories.has(channel.id)) histories.set(channel.id, new History());
    histories.get(channel.id).look(at, channel.endpoints);
  }
  for (const id of histories.keys()) if (!channels.some((channel) => channel.id === id)) histories.delete(id);
}

function show() {
  frame = null;
  const begun = performance.now();
  showProcess();
  // The page opens on the channel of its link, else on the one with the worst verdict.
  const channel = state.channels.find(({ id }) => id === chosen)
    ?? state.channels.find(({ target }) => target === linked?.channel)
    ?? worstFirst(state.channels)[0];
  if (channel && channel.id !== chosen) choose(channel.id);
  if (channel && linked) {
    table.restore(linked);
    linked = null;
  }
  const marks = state.events.filter(({ level }) => level === 'mark').map(({ at, number, text }, index) => ({ at, event: number, text, number: index + 1 }));
  showEvents(state.events, marks);
  showHints(state.hints);
  showClients(state.xds, state.at);
  fetchResources(state.xds, () => {
    showRoutes();
    showClients(state.xds, state.at);
  });
  strip.show(state.channels, channel?.id);
  showVerdict(state, channel);
  if (channel) showChannel(channel, marks);
  showConnection();
  // For tests: which moment is shown, and what showing it took.
  mark(document.body, 'data-at', String(state.at));
  mark(document.body, 'data-took', (performance.now() - begun).toFixed(1));
}

function choose(id) {
  chosen = id;
  table.clear();
  charts.clear();
  tree.clear();
}

/** The address of the page is a link to this view. */
function keepView() {
  const { find, sort } = table.view();
  const channel = state?.channels.length > 1 ? state.channels.find(({ id }) => id === chosen)?.target : null;
  const entries = Object.entries({ channel, find, sort }).filter(([, value]) => value);
  history.replaceState(null, '', `${location.pathname}${entries.length ? `#${new URLSearchParams(entries)}` : ''}`);
}

async function copyState() {
  const text = JSON.stringify(state, null, 2);
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers have no clipboard API on plain HTTP, except on loopback.
    const area = document.createElement('textarea');
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  put($('copy'), 'Copied');
  setTimeout(() => put($('copy'), 'Copy JSON'), 2000);
}

function showProcess() {
  put($('title'), state.title);
  put($('about'), `pid ${state.pid}`);
  put($('foot'), `evenkeel ${state.version} · watched for ${age(state.at - state.since)}`);
  document.title = state.title ? `${state.title} · evenkeel` : 'evenkeel';
}

function showChannel(channel, marks) {
  const { endpoints, traffic } = channel;
  giveKeys(endpoints);
  showFigures(channel, traffic);
  showFailures(channel, state.at);
  charts.show(histories.get(channel.id), labels(endpoints), marks);
  table.show(endpoints, state.at, (address) => charts.placeOf(address));
  tree.show(channel.tree);
}

/** Short names for charts: what sets addresses apart, the port on one host, the host where ports are the same. */
function labels(endpoints) {
  const host = (address) => address.slice(0, address.lastIndexOf(':'));
  const port = (address) => address.slice(address.lastIndexOf(':'));
  const same = (part) => endpoints.every(({ address }) => part(address) === part(endpoints[0].address));
  const short = same(host) ? port : same(port) ? host : (address) => address;
  const names = new Map(endpoints.map(({ address, name }) => [address, name || short(address) || address]));
  return (address) => names.get(address) ?? address;
}

function showFigures(channel, traffic) {
  const { endpoints } = channel;
  put($('target'), channel.target);
  mark($('target'), 'title', channel.target);
  put($('calls'), rate(traffic.rate));
  put($('success'), success(traffic));
  put($('p50'), millis(traffic.p50_ms));
  put($('p99'), millis(traffic.p99_ms));
  put($('in-flight'), count(traffic.in_flight));
  put($('ready'), `${count(endpoints.filter((endpoint) => endpoint.state === 'READY').length)} / ${count(endpoints.length)}`);
  const servers = state.xds.flatMap((client) => client.servers);
  const lost = servers.filter((server) => !server.connected);
  const [icon, word] = $('plane').children;
  const isLost = servers.length > 0 && lost.length === servers.length;
  shape(icon, servers.length === 0 ? 'none' : isLost ? 'bad' : lost.length ? 'warn' : 'good');
  put(word, servers.length === 0 ? 'none' : isLost ? 'lost' : lost.length ? `${lost.length} of ${servers.length} lost` : 'connected');
  showConfig(state.xds.flatMap((client) => client.resources));
}

function showConfig(resources) {
  const newest = resources.reduce((best, one) => (one.updated != null && (!best || one.updated > best.updated) ? one : best), null);
  const refused = resources.filter((one) => one.status === 'NACKED').length;
  const missing = resources.filter((one) => ['DOES_NOT_EXIST', 'TIMEOUT', 'RECEIVED_ERROR'].includes(one.status)).length;
  put($('config'), newest ? newest.version || '–' : '–');
  mark($('config'), 'title', newest?.version ?? null);
  put($('config-age'), refused ? `${refused} rejected` : missing ? `${missing} missing` : newest ? ago(state.at - newest.updated) : '');
  mark($('config-age'), 'data-level', refused || missing ? 'bad' : null);
}

function showConnection() {
  const isLive = document.body.dataset.connected === 'true';
  shape($('live').firstElementChild, isLive ? 'good' : state ? 'bad' : 'busy');
  put($('live-text'), isLive ? 'live' : state ? 'lost' : 'connecting');
  hide($('banner'), isLive || (!state && attempts === 0));
  put($('banner-age'), state ? `The data is ${age(Date.now() - heardAt)} old.` : '');
}

function useTheme(theme) {
  mark(document.documentElement, 'data-theme', theme === 'auto' ? null : theme);
  put($('theme'), `Theme: ${theme}`);
}

function savedTheme() {
  try {
    return THEMES.includes(localStorage.getItem('theme')) ? localStorage.getItem('theme') : 'auto';
  } catch {
    return 'auto';
  }
}

let theme = savedTheme();
useTheme(theme);
$('theme').addEventListener('click', () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  useTheme(theme);
  try {
    localStorage.setItem('theme', theme);
  } catch {
    // Without storage the choice lasts as long as the page.
  }
});
$('retry').addEventListener('click', listen);
$('copy').addEventListener('click', copyState);
setInterval(() => {
  if (document.body.dataset.connected !== 'true') showConnection();
}, 1000);
listen();
