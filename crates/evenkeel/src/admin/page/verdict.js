// The verdict of the process, as the server computes it, and that of the selected channel if it is another.

import { $, hide, mark, put, shape } from './format.js';

/** Not connected although it should be. An endpoint of an unused priority is not down. */
export const isDown = (endpoint) => endpoint.state === 'TRANSIENT_FAILURE';

const NONE = { level: 'idle', headline: 'No verdict', text: '' };

export function showVerdict(state, channel) {
  const { level, headline, text } = state.verdict ?? NONE;
  mark($('verdict'), 'data-level', level);
  shape($('verdict').firstElementChild, level);
  put($('headline'), headline);
  put($('because'), text);
  // The numbers in the text change all the time; only a change of the headline is announced.
  if ($('spoken').headline !== headline) {
    $('spoken').headline = headline;
    put($('spoken'), `${headline}. ${text}`);
  }
  const own = channel?.verdict;
  const isOther = Boolean(own) && state.channels.length > 1 && !text.includes(own.text);
  hide($('own'), !isOther);
  if (!isOther) return;
  mark($('own'), 'data-level', own.level);
  shape($('own').firstElementChild, own.level);
  put($('own').lastElementChild, `${channel.target}: ${own.headline}. ${own.text}`);
}
