// The policy `test.RpcBehaviorLoadBalancer`: round robin that adds its setting `rpcBehavior` to every call as metadata
// `rpc-behavior`. It is what the published case for policies of one's own asks of a client.
'use strict';

const { experimental } = require('@grpc/grpc-js');

const NAME = 'test.RpcBehaviorLoadBalancer';

class Config {
  constructor(rpcBehavior) {
    this.rpcBehavior = rpcBehavior;
  }

  static createFromJson(json) {
    if (typeof json.rpcBehavior !== 'string') {
      throw new Error(`rpcBehavior: expected a string, found ${JSON.stringify(json.rpcBehavior)}`);
    }
    return new Config(json.rpcBehavior);
  }

  getLoadBalancerName() {
    return NAME;
  }

  toJsonObject() {
    return { [NAME]: { rpcBehavior: this.rpcBehavior } };
  }
}

class Policy {
  constructor(helper) {
    this.rpcBehavior = '';
    const updateState = (state, picker, error) => helper.updateState(state, this.adding(picker), error);
    this.child = new experimental.ChildLoadBalancerHandler(
      experimental.createChildChannelControlHelper(helper, { updateState }),
    );
  }

  // A picker of the child whose picks carry the metadata. It is asked for at each pick, so that a new setting holds at once.
  adding(picker) {
    return {
      pick: args => {
        const result = picker.pick(args);
        if (result.pickResultType === experimental.PickResultType.COMPLETE) {
          args.metadata.add('rpc-behavior', this.rpcBehavior);
        }
        return result;
      },
    };
  }

  updateAddressList(endpoints, config, options, note) {
    if (!(config instanceof Config)) {
      return false;
    }
    this.rpcBehavior = config.rpcBehavior;
    const roundRobin = experimental.parseLoadBalancingConfig({ round_robin: {} });
    return this.child.updateAddressList(endpoints, roundRobin, options, note);
  }

  exitIdle() {
    this.child.exitIdle();
  }

  resetBackoff() {
    this.child.resetBackoff();
  }

  destroy() {
    this.child.destroy();
  }

  getTypeName() {
    return NAME;
  }
}

function register() {
  experimental.registerLoadBalancerType(NAME, Policy, Config);
}

module.exports = { register };
