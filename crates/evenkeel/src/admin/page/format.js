// Numbers, times and names as text; and the two helpers that touch the page only where something changed.
// Whatever comes from data becomes text here, never markup.

const formats = [0, 1, 2].map((digits) => new Intl.NumberFormat('en-US', {
  minimumFractionDigits: digits, maximumFractionDigits: digits,
}));

/** What stands where there is no value. */
export const NONE = '–';

function scaled(value, one, two) {
  if (value == null || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  return formats[size >= one || size === 0 ? 0 : size >= two ? 1 : 2].format(value);
}

/** For axes: 60,000 as 60K. */
const compact = new Intl.NumberFormat('en-US', { notation: 'compact', maximumFractionDigits: 1 });
export const roughly = (value) => compact.format(value);

export const rate = (value) => scaled(value, 100, 1);
export const weight = (value) => scaled(value, 100, 10);
export const millis = (value) => scaled(value, 100, 10);
export const count = (value) => (value == null ? NONE : formats[0].format(value));

/** A share of 0 to 1, as percent with one place; with two below one percent. */
export function percent(share) {
  if (share == null || !Number.isFinite(share)) return NONE;
  const value = share * 100;
  return `${formats[value > 0 && value < 1 ? 2 : 1].format(value)}%`;
}

/** How busy something is, in whole percent. */
export const busy = (value) => (value == null ? NONE : `${formats[0].format(value * 100)}%`);

/** Success never rounds up to 100 %. */
export function success(traffic) {
  if (!traffic.rate) return NONE;
  const share = Math.max(0, 1 - traffic.failures / traffic.rate) * 100;
  return `${formats[2].format(traffic.failures > 0 ? Math.min(share, 99.99) : share)}%`;
}

/** How long ago, in one unit. */
export function age(ms) {
  if (ms == null) return NONE;
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 1) return 'now';
  if (seconds < 100) return `${seconds} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export const ago = (ms) => (age(ms) === 'now' ? 'just now' : `${age(ms)} ago`);

const clockFormat = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
export const clock = (at) => clockFormat.format(at);

/** A locality without a name. */
export const NOWHERE = 'no locality';

/** `{region="r", zone="z", sub_zone="s"}` as `r / z / s`; anything else as it is. */
export function locality(text) {
  const parts = /^\{region="(.*)", zone="(.*)", sub_zone="(.*)"\}$/.exec(text ?? '');
  return parts ? parts.slice(1).filter(Boolean).join(' / ') || NOWHERE : text;
}

export const STATES = {
  READY: { shape: 'good', word: 'ready' },
  CONNECTING: { shape: 'busy', word: 'connecting' },
  IDLE: { shape: 'idle', word: 'idle' },
  TRANSIENT_FAILURE: { shape: 'bad', word: 'failing' },
};
export const stateOf = (name) => STATES[name] ?? { shape: 'none', word: name ?? 'unknown' };

/** Why an endpoint gets no calls, without what its row says anyway. */
export const whyOf = ({ unused, address }) => (unused ?? '').replace(`connecting to ${address}: `, '');

export const nameOf = (endpoint) => endpoint.name || endpoint.address;

export const $ = (id) => document.getElementById(id);

/** Sets a text if it is another. */
export function put(node, text) {
  if (node.said !== text) {
    node.said = text;
    node.textContent = text;
  }
}

/** Sets an attribute if it is another than was set here before; null takes it away. */
export function mark(node, name, value) {
  const marks = (node.marks ??= {});
  if (marks[name] === value || (value == null && marks[name] == null)) return;
  marks[name] = value;
  if (value == null) node.removeAttribute(name);
  else node.setAttribute(name, value);
}

/** Shows one of the shapes of index.html in an `svg` with a `use`. */
export function shape(svg, name) {
  mark(svg, 'data-shape', name);
  mark(svg.firstElementChild, 'href', `#${name}`);
}

export function hide(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

/** A copy of the first element of a template. */
export const copy = (id) => $(id).content.firstElementChild.cloneNode(true);

/** Makes `parent`'s children be `nodes`, in this order, and moves only those that stand wrong. */
export function arrange(parent, nodes) {
  let next = parent.firstChild;
  for (const node of nodes) {
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}
