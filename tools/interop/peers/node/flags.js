// Command lines of the programs: `--flag=value`, `--flag value`, one dash or two, and `--flag` alone for a boolean.
//
// A flag that is not known is warned about and left out, its value included: drivers pass flags that not every language has.
// A value that cannot be read ends the program with exit code 2.
'use strict';

const TRUTHS = { true: true, 1: true, false: false, 0: false };

// The values of `defaults` (name to default, whose type is the flag's), changed by the command line.
function parse(args, defaults) {
  const values = { ...defaults };
  const rest = [...args];
  while (rest.length > 0) {
    const [, dashes, name, , given] = /^(-*)([^=]*)(=([^]*))?$/.exec(rest.shift());
    if (dashes === '') {
      console.error(`${name}: expected a flag, ignored`);
      continue;
    }
    const known = Object.hasOwn(defaults, name);
    const isBoolean = known && typeof defaults[name] === 'boolean';
    let value = given;
    if (value === undefined && rest.length > 0 && takesNext(known, isBoolean, rest[0])) {
      value = rest.shift();
    }
    if (!known) {
      console.error(`--${name}: unknown flag, ignored`);
    } else if (isBoolean && value === undefined) {
      values[name] = true;
    } else {
      values[name] = read(name, value ?? '', typeof defaults[name]);
    }
  }
  return values;
}

// Whether the argument after a flag without `=` is its value.
function takesNext(known, isBoolean, following) {
  if (isBoolean) {
    return Object.hasOwn(TRUTHS, following.toLowerCase());
  }
  return known || !following.startsWith('-');
}

function read(name, text, kind) {
  if (kind === 'string') {
    return text;
  }
  const value = kind === 'boolean' ? TRUTHS[text.toLowerCase()] : text.trim() === '' ? NaN : Number(text);
  if (value === undefined || Number.isNaN(value)) {
    fail(`--${name}: expected a ${kind}, found "${text}"`);
  }
  return value;
}

// Ends the program: its command line is wrong.
function fail(message) {
  console.error(message);
  process.exit(2);
}

module.exports = { parse, fail };
