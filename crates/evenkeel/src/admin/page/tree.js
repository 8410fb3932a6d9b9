// The policy tree: who asks whom, in which state, and by which path calls go.
//
// A chain of policies with one child each is drawn straight down; only real branches are indented. Choosing a policy
// shows its details. Keys are those of any tree: arrows, Home, End, Enter.

import { $, arrange, busy, copy, hide, locality, mark, percent, put, shape, stateOf } from './format.js';

export class PolicyTree {
  constructor() {
    this.root = $('tree');
    this.nodes = new Map();
    this.chosen = null;
    this.root.addEventListener('click', (event) => {
      const item = event.target.closest('.row')?.closest('li');
      if (!item) return;
      this.focus(item);
      this.choose(item);
    });
    this.root.addEventListener('keydown', (event) => this.key(event));
  }

  clear() {
    this.nodes.clear();
    this.root.replaceChildren();
    this.chosen = null;
  }

  show(tree) {
    hide(this.root, !tree);
    hide($('channel-idle'), Boolean(tree));
    const before = this.nodes;
    this.nodes = new Map();
    this.before = before;
    arrange(this.root, tree ? [this.node('', '', '', tree, 1, true)] : []);
    if (![...this.nodes.values()].some((item) => item.tabIndex === 0)) {
      const first = this.root.firstElementChild;
      if (first) first.tabIndex = 0;
    }
  }

  node(path, name, edge, policy, level, isUsed) {
    const key = `${path}/${name}:${policy.policy}`;
    const item = this.before.get(key) ?? made(key);
    this.nodes.set(key, item);
    item.policy = policy;
    const state = stateOf(policy.state);
    mark(item, 'aria-level', String(level));
    mark(item, 'data-state', policy.state);
    mark(item, 'data-used', String(isUsed));
    mark(item, 'data-policy', policy.policy);
    shape(item.parts.shape, policy.state ? state.shape : 'none');
    put(item.parts.policy, policy.policy);
    // A child with the name of its own policy needs no label.
    put(item.parts.edge, edge && !policy.policy.includes(edge) ? locality(edge) : '');
    put(item.parts.sum, summary(policy));
    mark(item, 'aria-label', [policy.policy, locality(edge), state.word, isUsed ? 'in use' : 'not in use', summary(policy)].filter(Boolean).join(', '));
    if (item === this.chosen) showDetails(item);
    const warnings = policy.warnings ?? [];
    hide(item.parts.warnings, warnings.length === 0);
    arrange(item.parts.warnings, warnings.map((text, at) => {
      const line = item.parts.warnings.children[at] ?? document.createElement('li');
      put(line, text);
      return line;
    }));
    this.branches(item, key, policy, level, isUsed);
    return item;
  }

  branches(item, key, policy, level, isUsed) {
    const children = policy.children ?? [];
    mark(item, 'data-below', children.length > 1 ? 'many' : children.length === 1 ? 'one' : null);
    mark(item.parts.group, 'data-branches', children.length > 1 ? '' : null);
    const used = children.map(([child, below]) => isUsed && uses(policy, child, below));
    arrange(item.parts.group, children.map(([child, below], at) => {
      const node = this.node(key, child, priorityOf(policy, child) ?? child, below, level + 1, used[at]);
      // The trunk that it draws leads on to later ones that are used.
      mark(node, 'data-on', used.includes(true, at + 1) ? '' : null);
      return node;
    }));
    hide(item.parts.group, children.length === 0);
  }

  choose(item) {
    const old = this.chosen;
    this.chosen = old === item ? null : item;
    for (const one of [old, item]) {
      if (!one) continue;
      one.setAttribute('aria-selected', String(one === this.chosen));
      hide(one.parts.details, one !== this.chosen);
    }
    if (this.chosen) showDetails(item);
  }

  focus(item) {
    for (const one of this.nodes.values()) one.tabIndex = -1;
    item.tabIndex = 0;
    item.focus();
  }

  key(event) {
    const item = event.target.closest('[role=treeitem]');
    const items = [...this.root.querySelectorAll('[role=treeitem]')];
    const at = items.indexOf(item);
    const goal = {
      ArrowDown: items[at + 1],
      ArrowUp: items[at - 1],
      ArrowRight: item.querySelector('[role=treeitem]'),
      ArrowLeft: item.parentElement.closest('[role=treeitem]'),
      Home: items[0],
      End: items.at(-1),
    };
    if (event.key === 'Enter' || event.key === ' ') this.choose(item);
    else if (!(event.key in goal)) return;
    else if (goal[event.key]) this.focus(goal[event.key]);
    event.preventDefault();
  }
}

function made(key) {
  const item = copy('node');
  item.dataset.node = key;
  const [own, group] = item.children;
  const [row, details, warnings] = own.children;
  const [icon, policy, edge, sum] = row.children;
  item.parts = { shape: icon, policy, edge, sum, details, warnings, group };
  return item;
}

/** Whether calls that reach `policy` may go on to this child. */
function uses(policy, name, child) {
  const { chosen } = policy.details;
  if (chosen !== undefined && policy.policy.startsWith('priority')) return chosen === name;
  return child.state === policy.state;
}

/** `priority N` for a child of a priority policy. Its own name counts generations, not priorities. */
function priorityOf({ policy, details }, name) {
  const rank = policy.startsWith('priority') ? (details.priorities ?? []).indexOf(name) : -1;
  return rank < 0 ? null : `priority ${rank}`;
}

/** The most important details in one line. */
function summary(described) {
  const { policy, details, endpoints = [] } = described;
  const parts = [];
  if (details.chosen) {
    const chosen = priorityOf(described, details.chosen) ?? details.chosen;
    parts.push(/^priority [1-9]/.test(chosen) ? `failover to ${chosen}` : `uses ${chosen}`);
  }
  if (details.cluster && policy.startsWith('cds')) parts.push(details.cluster);
  if (details.inFlight != null && details.maxConcurrentRequests != null) parts.push(`${details.inFlight} of at most ${details.maxConcurrentRequests} in flight`);
  if (details.circuitBreakerDrops) parts.push(`${details.circuitBreakerDrops} shed`);
  if (details.weights_from) parts.push(`weights from ${details.weights_from}`);
  if (details.ejected) parts.push(`${details.ejected} ejected`);
  const targets = Object.entries(details.targets ?? {});
  if (targets.length > 1) parts.push(targets.slice(0, 4).map(([name, target]) => `${locality(name)} ${target.share == null ? 'none' : percent(target.share)}`).join(', '));
  if (endpoints.length) parts.push(`${endpoints.filter((row) => row.state === 'READY').length} of ${endpoints.length} endpoints ready`);
  return parts.join(' · ');
}

/** The details as name and value, the same lines while the same names are there. */
function showDetails(item) {
  const { details } = item.parts;
  const known = Object.entries(item.policy.details).filter(([, value]) => value != null);
  const entries = known.length ? known : [['details', 'none']];
  while (details.children.length > entries.length * 2) details.lastElementChild.remove();
  entries.forEach(([name, value], at) => {
    if (!details.children[at * 2]) details.append(document.createElement('dt'), document.createElement('dd'));
    put(details.children[at * 2], name);
    put(details.children[at * 2 + 1], written(value));
  });
}

/** A value as a person would write it. */
function written(value, depth = 0) {
  if (Array.isArray(value)) return value.length ? value.map((one) => written(one, depth + 1)).join(', ') : 'none';
  if (value && typeof value === 'object') {
    const entries = Object.entries(value).filter(([, one]) => one != null);
    if (entries.length === 0) return 'none';
    return entries.map(([name, one]) => `${locality(name)}: ${name === 'share' ? percent(one) : name === 'utilization' ? busy(one) : written(one, depth + 1)}`).join(depth ? ', ' : '\n');
  }
  return String(value);
}
