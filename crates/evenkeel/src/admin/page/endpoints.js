// The table of endpoints: what each should get and gets, and how it bears it.
//
// Rows live as long as their endpoint, only changed cells are written, and rows out of sight wait until they are seen:
// a thousand endpoints cost little more than forty. Few rows stand at first. Order by a moving value is refreshed now
// and then, and not under the reader's pointer.

import { $, NONE, NOWHERE, arrange, busy, copy, hide, locality, mark, millis, nameOf, percent, put, rate, shape, stateOf, weight, whyOf } from './format.js';
import { swatch } from './charts.js';
import { isDown } from './verdict.js';
import { failuresOf } from './failures.js';

/** So many rows stand before someone asks for all. */
const FEW = 40;
/** Number of endpoints with the same failure from which one row stands for them. */
const FOLD = 4;
/** An order by a moving value is refreshed every so many looks. */
const REORDER = 3;

/** Gives every endpoint its key; one address may serve two clusters. */
export function giveKeys(endpoints) {
  for (const endpoint of endpoints) {
    endpoint.key = `${endpoint.cluster}\n${endpoint.priority}\n${endpoint.locality}\n${endpoint.address}`;
  }
}

const trouble = (endpoint) => (isDown(endpoint) ? 3 : endpoint.traffic.failures > 0 || endpoint.traffic.recent_failures?.length ? 2 : endpoint.utilization >= 1 ? 1 : 0);

/** Each order as a comparison, best first when first chosen. */
const ORDERS = {
  name: (a, b) => nameOf(a).localeCompare(nameOf(b), 'en', { numeric: true }),
  share: (a, b) => (b.got ?? -1) - (a.got ?? -1),
  rate: (a, b) => b.traffic.rate - a.traffic.rate,
  busy: (a, b) => (b.utilization ?? -1) - (a.utilization ?? -1),
  weight: (a, b) => (b.weight ?? -1) - (a.weight ?? -1),
  latency: (a, b) => (b.traffic.p99_ms ?? -1) - (a.traffic.p99_ms ?? -1),
  failures: (a, b) => b.traffic.failures - a.traffic.failures,
  state: (a, b) => trouble(b) - trouble(a) || Math.abs((b.got ?? 0) - (b.want ?? 0)) - Math.abs((a.got ?? 0) - (a.want ?? 0)),
};

export class EndpointTable {
  /** `highlight(address)` receives the endpoint under the pointer; `changed()` is called after a choice of the reader. */
  constructor(highlight, changed) {
    this.changed = changed;
    this.folds = new Map();
    this.open = new Set();
    this.body = $('endpoints');
    this.rows = new Map();
    this.groups = new Map();
    this.sort = '';
    this.isReversed = false;
    this.isAll = false;
    this.isHeld = false;
    this.looks = 0;
    this.order = null;
    this.heads = [...document.querySelectorAll('[data-sort]')];
    for (const button of this.heads) {
      button.addEventListener('click', () => this.sortBy(button.dataset.sort));
    }
    $('sort').addEventListener('change', (event) => this.sortBy(event.target.value, false));
    $('filter').addEventListener('input', () => {
      this.redraw();
      changed();
    });
    $('all').addEventListener('click', () => {
      this.isAll = !this.isAll;
      this.redraw();
    });
    this.sight = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        target.isSeen = isIntersecting;
        if (isIntersecting) target.fill();
      }
    }, { rootMargin: '600px' });
    this.body.addEventListener('pointerover', (event) => {
      this.isHeld = true;
      highlight(event.target.closest('tr')?.dataset.endpoint ?? null);
    });
    this.body.addEventListener('pointerleave', () => {
      this.isHeld = false;
      highlight(null);
    });
  }

  /** Another channel: nothing of the old one stays. */
  clear() {
    this.sight.disconnect();
    this.rows.clear();
    this.groups.clear();
    this.folds.clear();
    this.open.clear();
    this.order = null;
    this.body.replaceChildren();
    this.isAll = false;
    this.chosen = null;
  }

  sortBy(order, canReverse = true) {
    this.chosen = true;
    this.isReversed = canReverse && order !== '' && this.sort === order && !this.isReversed;
    this.sort = order;
    this.redraw();
    this.changed();
  }

  /** The choices of the reader, for a link to this view. */
  view() {
    return { find: $('filter').value.trim(), sort: this.chosen ? this.sort : '' };
  }

  /** Takes the choices from a link. */
  restore({ find, sort }) {
    if (find) $('filter').value = find;
    if (!(sort in ORDERS)) return;
    this.chosen = true;
    this.sort = sort;
  }

  redraw() {
    this.order = null;
    if (this.last) this.show(...this.last);
  }

  /** `now` is the time of the sample; `placeOf(address)` the place of an endpoint in the charts. */
  show(endpoints, now, placeOf) {
    this.last = [endpoints, now, placeOf];
    const isMany = endpoints.length > FEW;
    // Among many, those in trouble come first until the reader says otherwise.
    if (!this.chosen) this.sort = isMany ? 'state' : '';
    hide($('find'), endpoints.length <= 12);
    const byKey = new Map(endpoints.map((endpoint) => [endpoint.key, endpoint]));
    const keys = this.arranged(endpoints, byKey);
    const lines = this.folded(keys, byKey);
    const shown = this.isAll ? lines : lines.slice(0, FEW);
    const scale = Math.max(...endpoints.map((e) => Math.max(e.got ?? 0, e.want ?? 0)), 1e-9);
    for (const [key, row] of this.rows) {
      if (byKey.has(key)) continue;
      this.sight.unobserve(row);
      this.rows.delete(key);
    }
    const rows = shown.map((key) => {
      if (this.folds.has(key)) return this.foldRow(key);
      const endpoint = byKey.get(key);
      const row = this.rows.get(key) ?? this.makeRow(endpoint);
      row.fill = () => fill(row, endpoint, scale, now, placeOf(endpoint.address));
      if (row.isSeen || !this.isAll) row.fill();
      return row;
    });
    arrange(this.body, this.withGroups(rows, endpoints));
    // Moving bars are pleasant among few and costly among many.
    mark(this.body, 'data-many', rows.length > 24 ? '' : null);
    mark(this.body, 'data-scroll', rows.length > 24 ? '' : null);
    mark(this.body, 'tabindex', rows.length > 24 ? '0' : null);
    this.showHeads(lines.length, shown.length);
    put($('nothing'), endpoints.length ? 'No endpoint matches.' : 'No endpoints yet.');
    hide($('nothing'), shown.length > 0);
  }

  /** The keys, with one line in place of many endpoints that are down for the same reason. */
  folded(keys, byKey) {
    const members = new Map();
    if (!$('filter').value.trim()) {
      for (const key of keys) {
        const endpoint = byKey.get(key);
        if (!isDown(endpoint)) continue;
        const name = foldOf(endpoint);
        if (!members.has(name)) members.set(name, []);
        members.get(name).push(endpoint);
      }
    }
    const before = this.folds;
    this.folds = new Map();
    return keys.flatMap((key) => {
      const endpoint = byKey.get(key);
      const name = isDown(endpoint) ? foldOf(endpoint) : null;
      const all = members.get(name) ?? [];
      if (all.length < FOLD) return [key];
      const isFirst = !this.folds.has(name);
      if (isFirst) this.folds.set(name, { row: before.get(name)?.row, members: all });
      const own = this.open.has(name) ? [key] : [];
      return isFirst ? [name, ...own] : own;
    });
  }

  foldRow(name) {
    const fold = this.folds.get(name);
    if (!fold.row) {
      fold.row = document.createElement('tr');
      fold.row.className = 'fold';
      fold.row.setAttribute('role', 'row');
      fold.row.dataset.fold = '';
      fold.row.group = groupOf(fold.members[0]);
      const [head, cell, button] = ['th', 'td', 'button'].map((kind) => document.createElement(kind));
      head.setAttribute('role', 'rowheader');
      cell.setAttribute('role', 'cell');
      const icon = $('live').firstElementChild.cloneNode(true);
      shape(icon, 'bad');
      head.append(icon, ' ', document.createElement('b'), ' ', document.createElement('span'));
      button.type = 'button';
      button.addEventListener('click', () => {
        if (!this.open.delete(name)) this.open.add(name);
        this.redraw();
      });
      cell.append(button);
      fold.row.append(head, cell);
    }
    const { row, members } = fold;
    put(row.querySelector('b'), `${members.length.toLocaleString('en-US')} endpoints failing`);
    put(row.querySelector('span'), reasonOf(members[0]));
    put(row.querySelector('button'), this.open.has(name) ? 'Fold' : 'Show');
    return row;
  }

  /** The keys in the reader's order. */
  arranged(endpoints, byKey) {
    this.looks += 1;
    const isDue = !this.order || (this.sort && this.looks % REORDER === 0 && !this.isHeld);
    const isSame = this.order?.every((key) => byKey.has(key)) && this.known === endpoints.length;
    if (!isDue && isSame) return this.order;
    const wanted = $('filter').value.trim().toLowerCase();
    const found = wanted && !$('find').hidden
      ? endpoints.filter((e) => `${nameOf(e)} ${e.address} ${e.cluster ?? ''} ${e.locality ?? ''}`.toLowerCase().includes(wanted))
      : [...endpoints];
    const compare = ORDERS[this.sort];
    if (compare) found.sort(this.isReversed ? (a, b) => compare(b, a) : compare);
    // Groups stay together, in the order of the tree.
    const place = new Map([...new Set(endpoints.map(groupOf))].map((name, at) => [name, at]));
    if (this.isGrouped(endpoints, place.size)) found.sort((a, b) => place.get(groupOf(a)) - place.get(groupOf(b)));
    this.known = endpoints.length;
    this.order = found.map((endpoint) => endpoint.key);
    return this.order;
  }

  /** One group needs no heading, very many are noise, and among many endpoints the worst come first, wherever they are. */
  isGrouped(endpoints, groups) {
    return groups > 1 && groups <= FEW / 4 && (endpoints.length <= FEW || this.sort === '');
  }

  withGroups(rows, endpoints) {
    const members = new Map();
    for (const endpoint of endpoints) {
      const name = groupOf(endpoint);
      if (!members.has(name)) members.set(name, []);
      members.get(name).push(endpoint);
    }
    if (!this.isGrouped(endpoints, members.size)) return rows;
    const nodes = [];
    let current = null;
    for (const row of rows) {
      if (row.group !== current) {
        current = row.group;
        nodes.push(this.groupRow(current, members.get(current)));
      }
      nodes.push(row);
    }
    return nodes;
  }

  groupRow(name, members) {
    let row = this.groups.get(name);
    if (!row) {
      row = document.createElement('tr');
      row.className = 'group';
      row.dataset.group = name;
      row.setAttribute('role', 'row');
      const head = document.createElement('th');
      head.setAttribute('role', 'rowheader');
      head.scope = 'rowgroup';
      head.append(document.createElement('b'), ' ', document.createElement('span'));
      row.append(head);
      this.groups.set(name, row);
    }
    const ready = members.filter((e) => e.state === 'READY').length;
    const got = members.reduce((sum, e) => sum + (e.got ?? 0), 0);
    const [title, note] = row.firstElementChild.children;
    put(title, name);
    put(note, `${ready} of ${members.length} ready · gets ${percent(got)}`);
    return row;
  }

  makeRow(endpoint) {
    const row = copy('row');
    row.group = groupOf(endpoint);
    row.dataset.endpoint = endpoint.address;
    row.fields = Object.fromEntries([...row.querySelectorAll('[data-field]')].map((cell) => [cell.dataset.field, cell]));
    row.bars = [row.querySelector('.bars .got'), row.querySelector('.bars .want')];
    row.gauge = row.querySelector('.gauge i');
    row.parts = { swatch: row.querySelector('.swatch'), shape: row.querySelector('.state svg'), share: row.querySelector('.share') };
    put(row.querySelector('.name'), nameOf(endpoint));
    row.querySelector('.name').title = nameOf(endpoint);
    put(row.querySelector('.address'), endpoint.name ? endpoint.address : locality(endpoint.locality) ?? '');
    this.rows.set(endpoint.key, row);
    this.sight.observe(row);
    return row;
  }

  showHeads(total, shown) {
    for (const button of this.heads) {
      const isOn = button.dataset.sort === this.sort;
      const isUp = (this.sort === 'name') !== this.isReversed;
      mark(button.parentElement, 'aria-sort', isOn ? (isUp ? 'ascending' : 'descending') : null);
    }
    if ($('sort').value !== this.sort) $('sort').value = this.sort;
    hide($('more'), total <= FEW);
    put($('shown'), `${shown.toLocaleString('en-US')} of ${total.toLocaleString('en-US')} shown`);
    put($('all'), this.isAll ? `Show the first ${FEW}` : `Show all ${total.toLocaleString('en-US')}`);
  }
}

/** The reason of a failure, without the time of the next attempt. */
const reasonOf = (endpoint) => whyOf(endpoint).split(';')[0].replaceAll(endpoint.address, 'the endpoint') || 'no reason known';
const foldOf = (endpoint) => `fold\n${groupOf(endpoint)}\n${reasonOf(endpoint)}`;

function groupOf(endpoint) {
  const parts = [];
  if (endpoint.cluster) parts.push(endpoint.cluster);
  if (endpoint.priority != null) parts.push(`priority ${endpoint.priority}`);
  const where = locality(endpoint.locality);
  if (where && where !== NOWHERE) parts.push(where);
  return parts.join(' · ');
}

function fill(row, endpoint, scale, now, place) {
  const { fields: cells, parts } = row;
  const state = stateOf(endpoint.state);
  const isStandby = endpoint.unused != null && !isDown(endpoint);
  mark(row, 'data-state', endpoint.state);
  mark(row, 'data-unused', endpoint.unused == null ? null : isStandby ? 'standby' : 'down');
  put(cells.got, percent(endpoint.got));
  put(cells.want, percent(endpoint.want));
  mark(cells.got, 'data-off', endpoint.off == null ? null : endpoint.off > 0 ? 'more' : 'less');
  stretch(row.bars[0], (endpoint.got ?? 0) / scale);
  stretch(row.bars[1], (endpoint.want ?? 0) / scale);
  put(cells.unused, whyOf(endpoint));
  if (endpoint.unused) mark(cells.unused, 'title', endpoint.unused);
  put(cells.rate, rate(endpoint.traffic.rate));
  put(cells.utilization, busy(endpoint.utilization));
  const load = endpoint.utilization ?? 0;
  mark(row, 'data-load', load >= 1 ? 'over' : load >= 0.85 ? 'high' : null);
  stretch(row.gauge, Math.min(load, 1));
  put(cells.weight, weight(endpoint.weight));
  put(cells.p50, millis(endpoint.traffic.p50_ms));
  put(cells.p99, millis(endpoint.traffic.p99_ms));
  put(cells.failures, endpoint.traffic.failures > 0 ? rate(endpoint.traffic.failures) : endpoint.traffic.rate > 0 ? '0' : NONE);
  mark(cells.failures, 'data-some', endpoint.traffic.failures > 0 ? '' : null);
  const failed = failuresOf(endpoint, now);
  hide(cells.failed, !failed);
  put(cells.failed, failed);
  mark(row, 'data-failed', failed ? '' : null);
  mark(cells.failed, 'title', failed || null);
  put(cells.state, isStandby && endpoint.state === 'READY' ? `${state.word}, unused` : state.word);
  shape(parts.shape, isStandby && endpoint.state === 'READY' ? 'idle' : state.shape);
  swatch(parts.swatch, place);
}

/** Bars are scaled, not sized: no layout. */
function stretch(bar, share) {
  const value = share.toFixed(4);
  if (bar.share !== value) {
    bar.share = value;
    bar.style.transform = `scaleX(${value})`;
  }
}
