// The messages and services of grpc.testing, from the definition that the installation puts beside this file.
'use strict';

const path = require('path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

// grpc-js reads its definitions of load reports from disk again for every report, in 13 ms or so: at a hundred calls per
// second nothing else would be done. What has been read is kept here; what is reported does not change by that.
const readDefinitions = loader.loadSync;
const kept = new Map();
loader.loadSync = (files, options) => {
  const key = JSON.stringify([files, options]);
  if (!kept.has(key)) {
    kept.set(key, readDefinitions(files, options));
  }
  return kept.get(key);
};

const definitions = loader.loadSync(path.join(__dirname, 'testing.proto'), { keepCase: true, defaults: true, longs: String });

module.exports = grpc.loadPackageDefinition(definitions).grpc.testing;
