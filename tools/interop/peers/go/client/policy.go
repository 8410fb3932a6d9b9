// The custom policy of the published cases, test.RpcBehaviorLoadBalancer: round_robin that asks every server for
// the behaviour in its configuration, by request metadata.

package main

import (
	"encoding/json"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/roundrobin"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/serviceconfig"
)

func init() { balancer.Register(behaviorPolicy{}) }

// behaviorPolicy builds the policy and reads its configuration.
type behaviorPolicy struct{}

func (behaviorPolicy) Name() string { return "test.RpcBehaviorLoadBalancer" }

type behaviorConfig struct {
	serviceconfig.LoadBalancingConfig `json:"-"`
	RPCBehavior                       string `json:"rpcBehavior"`
}

func (behaviorPolicy) ParseConfig(text json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	config := &behaviorConfig{}
	if err := json.Unmarshal(text, config); err != nil {
		return nil, fmt.Errorf("test.RpcBehaviorLoadBalancer: expected {\"rpcBehavior\": STRING}: %w", err)
	}
	return config, nil
}

func (behaviorPolicy) Build(parent balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	behavior := &atomic.Pointer[behaviorConfig]{}
	behavior.Store(&behaviorConfig{})
	child := balancer.Get(roundrobin.Name).Build(&behaviorParent{parent, behavior}, opts)
	return &behaviorBalancer{child, behavior}
}

// behaviorBalancer is the child with the configuration kept here.
type behaviorBalancer struct {
	balancer.Balancer
	behavior *atomic.Pointer[behaviorConfig]
}

func (b *behaviorBalancer) UpdateClientConnState(state balancer.ClientConnState) error {
	config, ok := state.BalancerConfig.(*behaviorConfig)
	if !ok {
		return fmt.Errorf("test.RpcBehaviorLoadBalancer: expected its own configuration, found %T", state.BalancerConfig)
	}
	b.behavior.Store(config)
	state.BalancerConfig = nil
	return b.Balancer.UpdateClientConnState(state)
}

// behaviorParent is what the child sees of the channel. It wraps the child's pickers.
type behaviorParent struct {
	balancer.ClientConn
	behavior *atomic.Pointer[behaviorConfig]
}

func (p *behaviorParent) UpdateState(state balancer.State) {
	state.Picker = &behaviorPicker{state.Picker, p.behavior}
	p.ClientConn.UpdateState(state)
}

type behaviorPicker struct {
	child    balancer.Picker
	behavior *atomic.Pointer[behaviorConfig]
}

func (p *behaviorPicker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	picked, err := p.child.Pick(info)
	if behavior := p.behavior.Load().RPCBehavior; err == nil && behavior != "" {
		picked.Metadata = metadata.Join(picked.Metadata, metadata.Pairs("rpc-behavior", behavior))
	}
	return picked, err
}
