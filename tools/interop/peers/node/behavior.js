// What a call asks of its server by the metadata `rpc-behavior`: to sleep, to stay open, to fail, to fail until a retry.
//
// Several behaviors are separated by commas and done in turn; one that begins with `hostname=NAME ` is for that host only.
'use strict';

const grpc = require('@grpc/grpc-js');

// Comes back when the call may be answered, with null or the status that it is to fail with.
async function behave(metadata, hostname) {
  const behaviors = metadata.get('rpc-behavior').flatMap(value => value.split(','));
  for (const stated of behaviors.map(behavior => behavior.trim()).filter(Boolean)) {
    const [, , host, behavior] = /^(hostname=(\S*) )?(.*)$/.exec(stated);
    if (host !== undefined && host !== hostname) {
      continue;
    }
    const [, name, digits] = /^(.*?)-?(\d*)$/.exec(behavior);
    const number = Number(digits);
    if (behavior === 'keep-open') {
      await new Promise(() => {});
    } else if (name === 'sleep' && digits) {
      await new Promise(resolve => setTimeout(resolve, number * 1000));
    } else if (name === 'error-code' && grpc.status[number] !== undefined && digits) {
      return number === 0 ? null : { code: number, details: `rpc-behavior "${behavior}"` };
    } else if (name === 'succeed-on-retry-attempt' && digits) {
      if (Number(metadata.get('grpc-previous-rpc-attempts')[0] ?? 0) === number) {
        return null;
      }
    } else {
      return { code: grpc.status.INVALID_ARGUMENT, details: `rpc-behavior "${behavior}": not known` };
    }
  }
  return null;
}

module.exports = { behave };
