// Strip of all channels, the worst first: level, target, connectivity state, rate and success. A click selects one.

import { $, arrange, hide, mark, put, rate, shape, stateOf, success } from './format.js';

const SEVERITY = ['bad', 'warn', 'good', 'idle'];
const severity = ({ verdict }) => SEVERITY.indexOf(verdict?.level ?? 'idle');

/** Channels in order of severity, then of failed calls. */
export const worstFirst = (channels) => [...channels].sort((a, b) => severity(a) - severity(b) || b.traffic.failures - a.traffic.failures || a.id - b.id);

export class ChannelStrip {
  /** `choose(id)` receives the id of the selected channel. */
  constructor(choose) {
    this.list = $('channels');
    this.items = new Map();
    this.choose = choose;
  }

  show(channels, chosen) {
    hide($('strip'), channels.length < 2);
    for (const id of this.items.keys()) if (!channels.some((channel) => channel.id === id)) this.items.delete(id);
    arrange(this.list, worstFirst(channels).map((channel) => {
      const item = this.items.get(channel.id) ?? this.make(channel.id);
      const { state, target, traffic, verdict } = channel;
      const { level, headline } = verdict ?? { level: 'idle', headline: '' };
      const [button] = item.children;
      const [icon, name, note] = button.children;
      mark(item, 'data-level', level);
      mark(button, 'aria-pressed', String(channel.id === chosen));
      mark(button, 'title', target);
      shape(icon, level);
      put(name, target);
      const parts = [headline, stateOf(state).word, `${rate(traffic.rate)} calls/s`];
      if (traffic.rate) parts.push(`${success(traffic)} success`);
      put(note, parts.filter(Boolean).join(' · '));
      return item;
    }));
  }

  make(id) {
    const item = document.createElement('li');
    const button = document.createElement('button');
    button.type = 'button';
    button.dataset.channel = id;
    const [name, note] = [document.createElement('b'), document.createElement('span')];
    button.append($('live').firstElementChild.cloneNode(true), name, note);
    button.addEventListener('click', () => this.choose(id));
    item.append(button);
    this.items.set(id, item);
    return item;
  }
}
