// Three charts of the last two minutes, drawn as SVG: calls stacked by endpoint, how busy they are, and p99.
//
// The endpoints with most calls have a place (colour, dash, shape) that they keep; the others are one grey line.
// Charts step once a second. They do not glide: drawing all the time would take the processor that is being measured.

import { NONE, age, busy, clock, millis, rate, roughly } from './format.js';
import { LOOKS } from './history.js';

/** So many endpoints have a line of their own. */
const PLACES = 7;
const HEIGHT = 190;
const EDGE = { left: 42, right: 86, top: 20, bottom: 20 };
const SVG = 'http://www.w3.org/2000/svg';

const KINDS = {
  rate: { show: rate, axis: roughly, none: 'no calls yet', rest: 'all others', isStacked: true, floor: 1, word: 'Calls per second' },
  busy: { show: busy, axis: busy, none: 'no endpoint reports its utilization', rest: 'highest other', line: 1, floor: 1.1, word: 'Utilization' },
  latency: { show: millis, axis: roughly, none: 'no call has ended yet', rest: 'highest other', isLog: true, floor: 10, word: 'p99 in milliseconds' },
};

const SHAPES = [
  'M6 1a5 5 0 1 1 0 10A5 5 0 1 1 6 1z', 'M1.5 1.5h9v9h-9z', 'M6 .5l5.5 10.5H.5z', 'M6 0l6 6-6 6-6-6z',
  'M.5 1h11L6 11.5z', 'M4.2 0h3.6v4.2H12v3.6H7.8V12H4.2V7.8H0V4.2h4.2z', 'M3 .8h6L12 6 9 11.2H3L0 6z',
];

/** Shows the place of an endpoint in the charts beside its name. */
export function swatch(svg, place) {
  if (svg.place === place) return;
  svg.place = place;
  svg.dataset.place = place ?? 'rest';
  svg.firstElementChild.setAttribute('d', place == null ? 'M2 5h8v2H2z' : SHAPES[place]);
}

export class Charts {
  constructor() {
    this.places = new Map();
    this.charts = [...document.querySelectorAll('[data-chart]')].map((figure) => new Chart(figure, KINDS[figure.dataset.chart], this));
    this.cursor = null;
    this.pointedAt = null;
    const seen = new ResizeObserver((entries) => {
      // Asking the page for widths would have it lay out everything, once a second.
      for (const { target, contentRect } of entries) target.chart.width = Math.max(240, Math.floor(contentRect.width));
      this.draw();
    });
    for (const chart of this.charts) seen.observe(chart.figure);
  }

  clear() {
    this.places.clear();
    this.history = null;
  }

  placeOf(address) {
    return this.places.get(address) ?? null;
  }

  /** `labelOf(address)` is a short name; `marks` are `{ at, number, text }`. */
  show(history, labelOf, marks) {
    Object.assign(this, { history, labelOf, marks });
    this.givePlaces();
    this.draw();
  }

  /** The busiest get a place. Who has one keeps it until another is clearly ahead: colours should not jump. */
  givePlaces() {
    const calls = new Map();
    for (const [address, { rate: values }] of this.history.byAddress) {
      let sum = 0;
      for (const value of values) if (value != null) sum += value;
      calls.set(address, sum);
    }
    for (const address of [...this.places.keys()]) if (!calls.has(address)) this.places.delete(address);
    const outside = [...calls.keys()].filter((address) => !this.places.has(address));
    if (calls.size > PLACES) outside.sort((a, b) => calls.get(b) - calls.get(a));
    for (const address of outside.slice(0, PLACES)) {
      if (this.places.size < PLACES) {
        const taken = new Set(this.places.values());
        this.places.set(address, SHAPES.findIndex((_, place) => !taken.has(place)));
        continue;
      }
      const [last] = [...this.places.keys()].sort((a, b) => calls.get(a) - calls.get(b));
      if (calls.get(address) <= 1.25 * calls.get(last)) break;
      const place = this.places.get(last);
      this.places.delete(last);
      this.places.set(address, place);
    }
  }

  draw() {
    if (!this.history) return;
    const chosen = [...this.places].sort((a, b) => a[1] - b[1]);
    const others = [...this.history.byAddress.keys()].filter((address) => !this.places.has(address));
    for (const chart of this.charts) chart.draw(chosen, others);
  }

  /** Points at one endpoint's lines; null at none. */
  highlight(address) {
    if (address === this.pointedAt) return;
    this.pointedAt = address;
    const place = address == null ? null : this.placeOf(address) ?? 'rest';
    for (const chart of this.charts) chart.highlight(place);
  }

  /** Reads all charts at one look; null reads none. */
  read(look) {
    this.cursor = look;
    for (const chart of this.charts) chart.read(look);
  }
}

class Chart {
  constructor(figure, kind, all) {
    Object.assign(this, { figure, kind, all, top: kind.floor, width: 400 });
    figure.chart = this;
    this.svg = make('svg', { class: 'plot', tabindex: '0', role: 'slider', 'aria-label': `${kind.word}: arrow keys show earlier values` });
    this.grid = make('g', { class: 'grid' });
    this.marks = make('g', { class: 'marks' });
    this.lines = make('g', { class: 'lines' });
    this.labels = make('g', { class: 'labels' });
    this.hair = make('path', { class: 'hair' });
    this.svg.append(this.grid, this.marks, this.lines, this.labels, this.hair);
    this.tip = document.createElement('div');
    this.tip.className = 'tip';
    this.tip.hidden = true;
    figure.append(this.svg, this.tip);
    this.paths = new Map();
    this.listen();
  }

  listen() {
    this.svg.addEventListener('pointermove', (event) => {
      const box = this.svg.getBoundingClientRect();
      const part = (event.clientX - box.left - EDGE.left) / this.inner;
      const look = Math.round(part * (LOOKS - 1)) - (LOOKS - this.all.history?.at.length);
      this.all.read(look < 0 ? null : Math.min(look, LOOKS - 1));
    });
    this.svg.addEventListener('pointerleave', () => this.all.read(null));
    this.svg.addEventListener('blur', () => this.all.read(null));
    this.svg.addEventListener('keydown', (event) => {
      const last = (this.all.history?.at.length ?? 0) - 1;
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: 10, PageDown: -10, Home: -LOOKS, End: LOOKS };
      if (event.key === 'Escape') this.all.read(null);
      if (!(event.key in steps) || last < 0) return;
      event.preventDefault();
      const from = this.all.cursor ?? last;
      this.all.read(Math.max(0, Math.min(last, from + steps[event.key])));
    });
  }

  draw(chosen, others) {
    const { history, labelOf } = this.all;
    const field = this.figure.dataset.chart;
    this.inner = this.width - EDGE.left - EDGE.right;
    set(this.svg, { viewBox: `0 0 ${this.width} ${HEIGHT}`, height: HEIGHT });
    this.series = chosen.map(([address, place]) => ({ place, label: labelOf(address), values: history.byAddress.get(address)[field] }));
    if (others.length) {
      const values = this.joined(others, field);
      this.series[this.kind.isStacked ? 'unshift' : 'push']({ place: 'rest', label: this.kind.rest, values });
    }
    this.stack(history.at.length);
    this.fit();
    this.drawGrid();
    this.drawMarks();
    this.drawLines();
    this.read(this.all.cursor);
  }

  /** Many series as one. Plain loops: a thousand endpoints are a hundred thousand values. */
  joined(addresses, field) {
    const { at, byAddress } = this.all.history;
    const joined = Array(at.length).fill(null);
    const isSum = this.kind.isStacked;
    for (const address of addresses) {
      const values = byAddress.get(address)[field];
      for (let look = 0; look < joined.length; look += 1) {
        const value = values[look];
        if (value == null) continue;
        const old = joined[look];
        joined[look] = old === null ? value : isSum ? old + value : old > value ? old : value;
      }
    }
    return joined;
  }

  /** Every series gets its upper edge, and if stacked the lower one. */
  stack(length) {
    let below = Array(length).fill(0);
    for (const series of this.series) {
      if (!this.kind.isStacked) series.upper = series.values;
      else {
        series.lower = below;
        series.upper = below.map((value, look) => value + (series.values[look] ?? 0));
        below = series.upper;
      }
    }
  }

  /** Looks are about a second apart, but who starts the server may say otherwise. */
  step() {
    const { at } = this.all.history;
    return at.length > 1 ? (at.at(-1) - at[0]) / (at.length - 1) : 1000;
  }

  /** The scale grows at once and shrinks late: a chart that breathes is hard to read. */
  fit() {
    let highest = this.kind.floor;
    let lowest = highest / 10;
    for (const { upper } of this.series) {
      for (const value of upper) {
        if (value > highest) highest = value;
        if (value != null && value < lowest) lowest = value;
      }
    }
    if (this.kind.isLog) {
      this.top = 10 ** Math.ceil(Math.log10(highest));
      this.base = 10 ** Math.max(Math.floor(Math.log10(lowest)), -2);
    } else if (highest > this.top || highest < 0.45 * this.top) this.top = nice(highest * 1.05);
  }

  x(look) {
    return EDGE.left + ((look + LOOKS - this.all.history.at.length) / (LOOKS - 1)) * this.inner;
  }

  y(value) {
    const part = this.kind.isLog ? Math.log(Math.max(value, this.base) / this.base) / Math.log(this.top / this.base) : value / this.top;
    return HEIGHT - EDGE.bottom - part * (HEIGHT - EDGE.top - EDGE.bottom);
  }

  /** Where lines stand across: halves, or tens. */
  ticks() {
    if (!this.kind.isLog) return [0, 0.5 * this.top, this.top];
    const tens = Math.round(Math.log10(this.top / this.base));
    return Array.from({ length: tens + 1 }, (_, ten) => this.base * 10 ** ten);
  }

  drawGrid() {
    const nodes = [];
    for (const value of this.ticks()) {
      const y = Math.round(this.y(value)) + 0.5;
      nodes.push(make('path', { d: `M${EDGE.left} ${y}h${this.inner}` }));
      nodes.push(make('text', { x: EDGE.left - 6, y: y + 3.5, 'text-anchor': 'end' }, this.kind.axis(value)));
    }
    if (this.kind.line != null) {
      const y = Math.round(this.y(this.kind.line)) + 0.5;
      nodes.push(make('path', { class: 'limit', d: `M${EDGE.left} ${y}h${this.inner}` }));
    }
    const whole = this.step() * LOOKS;
    for (const [part, text, anchor] of [[0, `${age(whole)} ago`, 'start'], [0.5, age(whole / 2), 'middle'], [1, 'now', 'end']]) {
      nodes.push(make('text', { x: EDGE.left + part * this.inner, y: HEIGHT - 5, 'text-anchor': anchor }, text));
    }
    if (this.series.every(({ values }) => values.every((value) => value == null))) {
      nodes.push(make('text', { x: EDGE.left + this.inner / 2, y: HEIGHT / 2, 'text-anchor': 'middle' }, this.kind.none));
    }
    this.grid.replaceChildren(...nodes);
  }

  drawMarks() {
    const { history, marks } = this.all;
    const end = history.at.at(-1);
    const nodes = [];
    const placed = marks.map(({ at, number }) => ({ number, x: EDGE.left + (1 - (end - at) / ((LOOKS - 1) * this.step())) * this.inner }));
    const seen = placed.filter(({ x }) => x >= EDGE.left && x <= EDGE.left + this.inner + 1);
    for (const [index, { number, x }] of seen.entries()) {
      nodes.push(make('path', { d: `M${x.toFixed(1)} ${EDGE.top - 4}V${HEIGHT - EDGE.bottom}` }));
      // Of marks that stand close, the last one keeps its number.
      if (seen[index + 1]?.x < x + 17) continue;
      nodes.push(make('rect', { x: (x - 8).toFixed(1), y: 2, width: 16, height: 14, rx: 3 }));
      nodes.push(make('text', { x: x.toFixed(1), y: 12.5, 'text-anchor': 'middle' }, String(number)));
    }
    this.marks.replaceChildren(...nodes);
  }

  drawLines() {
    const kept = new Set();
    for (const series of this.series) {
      kept.add(series.place);
      let path = this.paths.get(series.place);
      if (!path) {
        path = make('path', { 'data-place': series.place, class: this.kind.isStacked ? 'area' : 'line' });
        this.paths.set(series.place, path);
      }
      path.setAttribute('d', this.kind.isStacked ? this.area(series) : this.line(series.upper));
      this.lines.append(path);
    }
    for (const [place, path] of this.paths) if (!kept.has(place)) this.paths.delete(place), path.remove();
    this.drawLabels();
  }

  line(values) {
    let d = '';
    let isDown = false;
    values.forEach((value, look) => {
      if (value != null) d += `${isDown ? 'L' : 'M'}${this.x(look).toFixed(1)} ${this.y(value).toFixed(1)}`;
      isDown = value != null;
    });
    return d || 'M0 0';
  }

  area({ upper, lower }) {
    if (upper.length === 0) return 'M0 0';
    const point = (values) => (look) => `${this.x(look).toFixed(1)} ${this.y(values[look]).toFixed(1)}`;
    const looks = [...upper.keys()];
    return `M${looks.map(point(upper)).join('L')}L${looks.reverse().map(point(lower)).join('L')}Z`;
  }

  /** Names stand at the lines' ends, moved apart where they would overlap. */
  drawLabels() {
    const ends = [];
    for (const { place, label, upper, lower, values } of this.series) {
      const value = values.at(-1);
      if (value == null || (lower && value === 0)) continue;
      ends.push({ place, label, y: this.y(lower ? (upper.at(-1) + lower.at(-1)) / 2 : value) });
    }
    ends.sort((a, b) => a.y - b.y);
    const [first, last] = [EDGE.top, HEIGHT - EDGE.bottom];
    ends.forEach((end, at) => { end.y = Math.max(end.y, at ? ends[at - 1].y + 13 : first); });
    for (let at = ends.length - 1; at >= 0; at -= 1) ends[at].y = Math.min(ends[at].y, at + 1 < ends.length ? ends[at + 1].y - 13 : last);
    const x = EDGE.left + this.inner + 6;
    this.labels.replaceChildren(...ends.flatMap(({ place, label, y }) => [
      make('path', { 'data-place': place, class: 'end', d: place === 'rest' ? 'M2 5h8v2H2z' : SHAPES[place], transform: `translate(${x} ${(y - 4).toFixed(1)}) scale(.68)` }),
      make('text', { x: x + 12, y: (y + 3.5).toFixed(1) }, short(label, 12)),
    ]));
  }

  highlight(place) {
    for (const [own, path] of this.paths) path.classList.toggle('dim', place != null && own !== place);
  }

  read(look) {
    const at = this.all.history?.at[look ?? -1];
    const isOff = look == null || at == null || !this.series;
    this.tip.hidden = isOff || !(this.svg.matches(':hover') || this.svg === document.activeElement);
    this.hair.setAttribute('d', isOff ? 'M0 0' : `M${this.x(look).toFixed(1)} ${EDGE.top}V${HEIGHT - EDGE.bottom}`);
    const now = (this.all.history?.at.length ?? 1) - 1;
    const read = isOff ? now : look;
    const values = (this.series ?? []).map(({ place, label, values }) => ({ place, label, value: values[read] ?? null }));
    const text = values.map(({ label, value }) => `${label} ${this.kind.show(value)}`).join(', ');
    set(this.svg, { 'aria-valuemin': -LOOKS, 'aria-valuemax': 0, 'aria-valuenow': read - now, 'aria-valuetext': `${now - read} seconds ago: ${text || NONE}` });
    if (this.tip.hidden) return;
    const head = document.createElement('b');
    head.textContent = clock(at);
    this.tip.replaceChildren(head, ...values.reverse().map(({ place, label, value }) => tipLine(place, label, this.kind.show(value))));
    this.tip.dataset.side = this.x(look) > EDGE.left + this.inner / 2 ? 'left' : 'right';
    this.tip.style.left = `${this.x(look) + (this.tip.dataset.side === 'left' ? -10 : 10)}px`;
  }
}

function tipLine(place, label, value) {
  const line = document.createElement('span');
  const icon = make('svg', { class: 'swatch', viewBox: '0 0 12 12', 'aria-hidden': 'true' });
  icon.append(make('path'));
  swatch(icon, place === 'rest' ? null : place);
  const number = document.createElement('i');
  number.textContent = value;
  const name = document.createElement('span');
  name.textContent = short(label, 24);
  line.append(icon, name, number);
  return line;
}

/** The next of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 times a power of ten. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.2, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value * 0.999);
}

const short = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
}

function make(name, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text != null) node.textContent = text;
  return node;
}
